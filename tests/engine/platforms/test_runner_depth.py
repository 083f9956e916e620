"""A platform that brings its own model runner, as it is generated: NumPy, no torch device, the same tokens."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tessera.errors import PlatformError, RequestError
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.generated import numpy_package
from tests.platforms.tiny_models import text_of
from tools.checks.sources import imports


def test_it_imports_the_contracts_and_numpy_and_nothing_else() -> None:
    sources = [ast.parse(path.read_text(encoding="utf-8")) for path in numpy_package().rglob("*.py")]
    targets = {entry.target for source in sources for entry in imports(source)}
    packages = {target.partition(".")[0] for target in targets} - set(sys.stdlib_module_names)
    assert packages == {"numpy", "tessera", "tessera_numpy"}
    assert all(target.startswith("tessera.platform") for target in targets if target.startswith("tessera."))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("params", [{}, SAMPLED, FILTERED], ids=["greedy", "sampled", "filtered"])
def test_tokens_are_those_of_every_platform(llama: Path, alone: Alone, depth: int, params: dict) -> None:
    questions = prompts(11)
    with EngineRun(llama, "numpy", depth=depth) as run:
        answers = run.ask(questions, 14, ignore_eos=True, **params)
    assert answers == [
        alone(question, 14, seed=seed, ignore_eos=True, **params) for seed, question in enumerate(questions)
    ]


def test_its_blocks_are_shared_forked_chunked_and_taken_away(llama: Path, alone: Alone) -> None:
    shared = prompts(1, seed=8)[0] * 3
    questions = [shared + rest for rest in prompts(4, longest=9, seed=9)]
    pool = {"max_model_len": 256, "kv_cache_memory_bytes": 290 * 384, "max_num_batched_tokens": 24}
    with EngineRun(llama, "numpy", depth=2, **pool) as run:
        leader = run.add(questions[0], 40, seed=0, ignore_eos=True, **SAMPLED)
        keys = [leader] + [
            run.add(question, 40, seed=i, leader=leader if i == 1 else -1, ignore_eos=True, **SAMPLED)
            for i, question in enumerate([questions[0], *questions[1:]], start=1)
        ]
        run.finish()
        counters = run.engine.stats.counters
    assert [run.answers[key] for key in keys] == [
        alone(question, 40, seed=i, ignore_eos=True, **SAMPLED)
        for i, question in enumerate([questions[0], questions[0], *questions[1:]])
    ]
    assert counters.forked_tokens > 0
    assert counters.cached_prompt_tokens > 0
    assert counters.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_its_rows_are_masked_as_on_every_platform(llama: Path, depth: int) -> None:
    found = []
    for platform in ("numpy", "reference"):
        options = {"features": ["structured_outputs"], "tokenizer": str(llama), "depth": depth}
        with EngineRun(llama, platform, **options) as run:
            keys = [
                run.add(question, 12, seed=seed, structured_outputs={"regex": "[a-f]+[0-9]"} if seed % 2 else None)
                for seed, question in enumerate(prompts(5))
            ]
            run.finish()
            found.append([run.answers[key] for key in keys])
    assert found[0] == found[1]
    for answer in found[0][1::2]:
        assert re.fullmatch("[a-f]+[0-9]?", text_of(answer))


def test_log_probabilities_are_those_of_every_platform(llama: Path) -> None:
    found = []
    for platform in ("numpy", "reference"):
        with EngineRun(llama, platform) as run:
            keys = [
                run.add(question, 5, seed=seed, logprobs=wanted, logit_bias={7: 3.0})
                for seed, (question, wanted) in enumerate(zip(prompts(3), (0, None, 4), strict=True))
            ]
            run.finish()
            found.append([run.logprobs[key] for key in keys])
    own, reference = found
    assert [len(rows) for rows in own] == [len(rows) for rows in reference] == [5, 0, 5]
    for mine, theirs in zip(
        (row for rows in own for row in rows), (row for rows in reference for row in rows), strict=True
    ):
        assert mine.ids.tolist() == theirs.ids.tolist()
        assert mine.ranks.tolist() == theirs.ranks.tolist()
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)


def test_what_its_runner_cannot_do_is_refused_by_name(llama: Path) -> None:
    with EngineRun(llama, "numpy") as run:
        with pytest.raises(RequestError, match="prompt_logprobs is not supported on this platform") as raised:
            run.add([1, 2, 3], 4, prompt_logprobs=1)
        assert raised.value.param == "prompt_logprobs"
        del run.answers[0]
        assert len(run.ask([[1, 2, 3]], 4)[0]) == 4, "others go on"


def test_no_fallback_is_refused_at_the_start(llama: Path) -> None:
    with pytest.raises(PlatformError, match="op 'sample' would run on the reference .*, which --no-fallback forbids"):
        EngineRun(llama, "numpy", no_fallback=True)
