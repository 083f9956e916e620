"""Engines on JAX's CPU: the stage that runs them has an environment of its own (tools/tpu)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

collect_ignore_glob = [] if find_spec("torchax") else ["*"]

SMALL = {"max_num_batched_tokens": 64, "max_model_len": 128}
"""Each size of a launch is a program, which takes seconds to compile, though once for all tests."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """family("llama"): a tiny model of it, made once."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = save_family(name, tmp_path_factory.mktemp("models"))
        return made[name]

    return folder


@pytest.fixture(scope="session")
def expected(family: Callable[[str], Path]) -> Callable[..., list[list[int]]]:
    """expected("llama", questions, 12, temperature=1.0): what the reference platform answers."""

    def answers(name: str, questions: list[list[int]], max_tokens: int, **params: Any) -> list[list[int]]:
        with EngineRun(family(name), "reference") as run:
            return run.ask(questions, max_tokens, ignore_eos=True, **params)

    return answers


@pytest.fixture
def start(family: Callable[[str], Path]) -> Iterator[Callable[..., EngineRun]]:
    """start("llama", depth=2): an engine on JAX's CPU, closed after the test. name: of a family, or a folder."""
    runs: list[EngineRun] = []

    def make(name: str | Path = "llama", platform: str = "HostPlatform", **options: Any) -> EngineRun:
        folder, path = family(name) if isinstance(name, str) else name, f"tessera_tpu.platform:{platform}"
        runs.append(EngineRun(folder, path, **{"depth": 2, **SMALL, **options}))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
