"""An engine in this process, as LLM makes one, that notes when each step's tokens were there."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.arithmetic import Rates, Step, rates
from benchmarks.gpu.models import Sizes
from tessera.config import build_config
from tessera.engine.engine import Engine
from tessera.engine.offline import OfflineEngine
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.scheduler.outputs import EngineCoreOutputs

Watch = Callable[[Sequence[Step]], None]


def model_folder(folder: Path, sizes: Sizes) -> Path:
    """A folder with the model's config.json; its weights, if there are any, stay."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(sizes)), encoding="utf-8")
    return folder


class Timed:
    """flags: of the engine. Weights are random unless the folder has some."""

    def __init__(self, model: Path, platform: str, **flags: Any) -> None:
        self.vocab = int(json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
        self.steps: list[Step] = []
        self._watch: Watch | None = None
        timed = self

        class Noting(Engine):
            def step(self) -> EngineCoreOutputs | None:
                outputs = super().step()
                if outputs is not None and len(outputs.keys):
                    timed.steps.append(Step(time.perf_counter(), outputs.keys.repeat(outputs.counts).tolist()))
                    if timed._watch is not None:
                        timed._watch(timed.steps)
                return outputs

        config = build_config(
            model=str(model),
            platform=platform,
            load_format="auto" if any(model.glob("*.safetensors")) else "dummy",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            **flags,
        )
        self._engine = Noting(dataclasses.replace(config, embedded=True))
        self._offline = OfflineEngine(self._engine, None)

    def prompts(self, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
        """Random token ids."""
        draw = random.Random(seed)
        return [[draw.randrange(2, self.vocab) for _ in range(length)] for length in lengths]

    def run(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int], watch: Watch | None = None) -> Rates:
        """Answers all prompts at once, greedily, each with exactly its length in tokens. watch: called after each step
        with all of them."""
        jobs = []
        for prompt, length in zip(prompts, lengths, strict=True):
            params = SamplingParams(
                temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            jobs.append(self._offline.job(self._offline.front.prepare(list(prompt), params), params))
        self.steps, self._watch = [], watch
        began = time.perf_counter()
        outputs = self._offline.run(jobs, lambda output: None)
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(lengths)
        # The engine's keys count on from run to run, in the order of the jobs.
        first = min(key for step in self.steps for key in step.keys)
        return rates(began, [Step(at, [key - first for key in keys]) for at, keys in self.steps], lengths)

    def on_reference(self) -> list[str]:
        """The ops that core's reference computed."""
        return sorted(self._engine.stats.fallbacks)

    def close(self) -> None:
        self._offline.close()
