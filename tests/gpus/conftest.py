"""Engines on fake GPUs: the stages that run them ask for Triton and a compiler.

Triton reads TRITON_INTERPRET when it decorates a function, so it is set before anything imports Triton."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"

import torch

from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

collect_ignore_glob = [] if find_spec("triton") else ["*"]

HEADS = {"head_dim": 24}
"""A size that the kernels take, and no power of two."""

PLATFORMS = {
    "cuda": "tests.platforms.fake_gpu:Cuda",
    "rocm": "tests.platforms.fake_gpu:Rocm",
    "rocm-wave32": "tests.platforms.fake_gpu:RocmOfNarrowWaves",
    "xpu": "tests.platforms.fake_gpu:Xpu",
}

_PACKAGES = (
    "", "core", *(f"platforms/{name}" for name in ("triton", "cuda", "rocm", "xpu")), "tests/fakechip",
    "tests/torch_fakechip",
)  # fmt: skip


def python_path() -> str:
    """For processes that the tests start."""
    return os.pathsep.join(str(Path(__file__).parents[2] / package) for package in _PACKAGES)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def chip() -> Any:
    import torch_fakechip

    return torch_fakechip


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """family("llama"): a tiny model of it, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = save_family(name, tmp_path_factory.mktemp("models"), **HEADS)
        return made[name]

    return of


@pytest.fixture(scope="session")
def reference(family: Callable[[str], Path]) -> Iterator[Callable[..., EngineRun]]:
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
