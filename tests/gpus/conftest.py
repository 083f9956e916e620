"""Engines on fake GPUs: the stages that run them ask for Triton and a compiler.

Triton reads TRITON_INTERPRET when it decorates a function, so it is set before anything imports Triton."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"

from tests.platforms import emulated
from tests.platforms.emulated import family, one_thread, reference, sizes

__all__ = ["family", "one_thread", "reference", "sizes"]

collect_ignore_glob = [] if find_spec("triton") else ["*"]

PLATFORMS = {
    "cuda": "tests.platforms.fake_gpu:Cuda",
    "rocm": "tests.platforms.fake_gpu:Rocm",
    "rocm-wave32": "tests.platforms.fake_gpu:RocmOfNarrowWaves",
    "xpu": "tests.platforms.fake_gpu:Xpu",
}


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path(*(f"platforms/{name}" for name in ("triton", "cuda", "rocm", "xpu")), "tests/fakechip")


@pytest.fixture(scope="session")
def chip() -> Any:
    import torch_fakechip

    return torch_fakechip
