"""Engines on `ascend` over an emulated `npu` device, with a stand-in for torch_npu.

A process has one emulated device, so these tests have a stage of their own, which names it, and are not collected
elsewhere: `TORCH_FAKECHIP_NAME=npu pytest tests/ascend`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest

from tests.platforms import emulated
from tests.platforms.emulated import chip, family, one_thread, reference

__all__ = ["chip", "family", "one_thread", "reference"]

PLATFORM = "tessera_ascend.platform:AscendPlatform"

chosen = os.environ.get("TORCH_FAKECHIP_NAME") == "npu"
collect_ignore_glob = [] if chosen else ["*"]
if chosen:
    sys.path.insert(0, str(emulated.ROOT / "tests/ascend/vendor"))
    import_module("torch_npu")


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path("platforms/ascend", "tests/ascend/vendor")


@pytest.fixture(scope="session")
def sizes() -> dict[str, int]:
    """Of the tiny models: multiples of the matrix unit's tiles."""
    return {"head_dim": 32, "hidden_size": 96, "intermediate_size": 160}
