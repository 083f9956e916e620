"""Engines and servers on platforms over an emulated device, asked the same as the reference platform. The fixtures are
those of each folder that imports them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.e2e.served import Served
from tests.engine.platforms.test_tokens_on_every_platform import FILTERED, SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

HEADS = {"head_dim": 24}
"""A size that kernels take, and no power of two."""

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
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """family("llama"): a tiny model of it, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = save_family(name, tmp_path_factory.mktemp("models"), **HEADS)
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


def served_answers(platform: str, model: Path, log: Path, environment: dict[str, str]) -> list[str]:
    """A server's, from the command line to the stream."""
    flags = [str(model), "--platform", platform, "--dtype", "float32", "--kv-cache-memory-bytes", str(4 << 20)]
    flags += ["--max-num-seqs", "4"]
    with (
        Served(flags, log, environment={**os.environ, **environment}) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        ask: dict[str, Any] = {"model": client.models.list().data[0].id, "max_tokens": 8, "seed": 7}
        warm = client.completions.create(**ask, prompt=["ab cd", "xyz"], temperature=1.0)
        streamed = client.completions.create(**ask, prompt="ab cd", temperature=0, stream=True)
        return [choice.text for choice in warm.choices] + ["".join(chunk.choices[0].text for chunk in streamed)]
