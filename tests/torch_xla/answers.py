"""Engines on torch_xla's device: they answer as the reference platform does, and compile nothing for requests like
those that they had. Run by tools/xla in its environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch_xla.debug import metrics

from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

PLATFORM = "tessera_xla.platform:TorchXlaPlatform"
FAMILIES = ("llama", "gemma2")
QUESTIONS: Sequence[Sequence[int]] = ([5, 6, 7], [9] * 30, [3, 1, 4, 1, 5, 9, 2, 6, 5], [8, 8], [2, 7, 1, 8, 2, 8])
FLAGS: dict[str, Any] = {"depth": 2, "max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 16}


def answers(run: EngineRun, tokens: int) -> list[list[int]]:
    """Greedy and sampled ones."""
    keys = [
        run.add(list(question), tokens, seed=number, ignore_eos=True, temperature=float(number % 2))
        for number, question in enumerate(QUESTIONS)
    ]
    run.finish()
    return [run.answers[key] for key in keys]


def compilations() -> int:
    found = metrics.metric_data("CompileTime")
    return 0 if found is None else int(found[0])


def tried(model: Path) -> list[str]:
    """What is wrong."""
    with EngineRun(model, "reference", max_num_seqs=4) as run:
        expected = answers(run, 8)
    before = compilations()
    with EngineRun(model, PLATFORM, **FLAGS) as run:
        started = compilations()
        first = answers(run, 8)
        once = compilations()
        again = [answers(run, 8) for _ in range(2)]
        twice = compilations()
        again.append(answers(run, 8))
        after = compilations()
        programs = len(run.executor.runner.executables)
    print(
        f"{model.name}: {programs} shapes; {started - before} programs compiled by the start, {once - started} by the "
        f"first {len(QUESTIONS)} answers, {twice - once} by two repetitions, {after - twice} by the next",
        flush=True,
    )
    wrong = [f"{model.name}: {first} is not {expected}"] if first != expected else []
    wrong += [f"{model.name}: later answers differ from the first"] if any(one != first for one in again) else []
    return wrong + ([f"{model.name}: {after - twice} programs compiled for known shapes"] if after > twice else [])


def main() -> int:
    wrong = []
    with TemporaryDirectory() as folder:
        for name in FAMILIES:
            wrong += tried(save_family(name, Path(folder)))
    print("\n".join(wrong) or "the answers are the reference's")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
