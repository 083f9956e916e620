"""Engines on platforms over an emulated device, asked the same as the reference platform. The fixtures are
those of each folder that imports them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.testing.conformance import Case
from tessera.testing.conformance.drafts import KnownAnswers, Uneven
from tessera.testing.conformance.lora import save_adapter
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.adapters import save_merged
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB, save_family, text_of

QUESTIONS = prompts(5, longest=30, seed=17)
EACH: Sequence[dict[str, Any]] = ({}, {**SAMPLED, **FILTERED}, SAMPLED, {}, {**SAMPLED, "repetition_penalty": 1.3})

Family, Reference = Callable[[str], Path], Callable[..., EngineRun]

ROOT = Path(__file__).parents[2]
PACKAGES = ("", "core", "tests/torch_fakechip")


def python_path(*folders: str) -> str:
    """For processes that tests start. folders: of the repository, beside those of core and of the device."""
    return os.pathsep.join(str(ROOT / folder) for folder in (*PACKAGES, *folders))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def chip() -> Any:
    """What counts on the emulated device."""
    from torch_fakechip import compiled

    return compiled


@pytest.fixture
def compiled() -> list[str]:
    """What was compiled ahead of time since the test began."""
    from torch_fakechip import ahead

    ahead.compiled.clear()
    return ahead.compiled


@pytest.fixture(scope="session")
def sizes() -> dict[str, int]:
    """Of the tiny models. Heads have a size that kernels take, and no power of two."""
    return {"head_dim": 24}


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int]) -> Family:
    """family("llama"): a tiny model of it, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = save_family(name, tmp_path_factory.mktemp("models"), **sizes)
        return made[name]

    return of


@pytest.fixture(scope="session")
def reference(family: Family) -> Iterator[Reference]:
    """reference("llama", quantization="int8"): an engine of it on the reference platform, made once."""
    runs: dict[str, EngineRun] = {}

    def of(name: str, **flags: Any) -> EngineRun:
        key = repr((name, sorted(flags.items())))
        if key not in runs:
            runs[key] = EngineRun(family(name), "reference", **flags)
        return runs[key]

    yield of
    for run in runs.values():
        run.close()


def on_device(model: Path, platform: str, **flags: Any) -> EngineRun:
    """Two steps in flight, prompts in chunks, launches captured."""
    return EngineRun(model, platform, **{"depth": 2, "max_num_seqs": 4, "max_num_batched_tokens": 32, **flags})


def answers(run: EngineRun, max_tokens: int = 5) -> list[list[int]]:
    """Of all questions at once, each with parameters of its own."""
    keys = [
        run.add(question, max_tokens, seed=seed, ignore_eos=True, **params)
        for seed, (question, params) in enumerate(zip(QUESTIONS, EACH, strict=True))
    ]
    run.finish()
    return [run.answers[key] for key in keys]


def conforms(case: Case, *, absent: re.Pattern[str], declined: re.Pattern[str], not_taken: Sequence[str]) -> None:
    """A case passes, unless what is tried is absent from the platform or declined by it, by the case's name or in these
    words."""
    found = case.run()
    if found.status != "passed" and found.text in not_taken:
        return
    expected = "n/a" if absent.search(case.id) else "falls back" if declined.search(case.id) else "passed"
    assert found.status == expected, found.text


def answers_with_drafts(start: Callable[..., EngineRun], expected: list[list[int]]) -> tuple[list[list[int]], set[str]]:
    """The answers where the drafts are what is expected, of which some are spoilt, uneven numbers of them in a launch,
    and the kinds of launches that were captured. start: an engine with more flags."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    with start(speculative_config=drafts, max_num_seqs=2) as run:
        speculation = run.engine._scheduler.speculation
        assert speculation is not None
        whole = [question + answer for question, answer in zip(QUESTIONS, expected, strict=True)]
        speculation.proposer, speculation.lengths = KnownAnswers(whole, VOCAB), Uneven(256, 3)
        found = answers(run, len(expected[0]))
        counters = run.engine.stats.counters
        assert 0 < counters.accepted_tokens < counters.draft_tokens
        return found, {key.kind for key in run.executor.runner.executables}


def share_a_batch(start: Callable[..., EngineRun], model: Path, folder: Path, **flags: Any) -> None:
    """A request with an adapter answers as the merged model does on the reference platform, beside one with a
    grammar."""
    adapter = save_adapter(model, folder / "adapter", seed=1, rank=4)
    with EngineRun(save_merged(model, adapter, folder / "merged"), "reference", **flags) as run:
        expected = run.ask(QUESTIONS[:1], 5, ignore_eos=True)
    features = ["lora", "structured_outputs"]
    with start(features=features, enable_lora=True, max_loras=1, tokenizer=str(model), **flags) as run:
        adapted = run.add(QUESTIONS[0], 5, ignore_eos=True, adapter=str(adapter))
        chosen = run.add(QUESTIONS[1], 12, structured_outputs={"choice": ["yes", "no"]})
        run.finish()
        assert run.answers[adapted] == expected[0]
        assert text_of(run.answers[chosen]).startswith(("yes", "no"))
