"""Engines on `spyre` over an emulated device of that name, with a stand-in for torch_spyre.

A process has one emulated device, so these tests have a stage of their own, which names it, and are not collected
elsewhere: `TORCH_FAKECHIP_NAME=spyre pytest tests/spyre`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest

from tests.platforms import emulated
from tests.platforms.emulated import chip, compiled, family, one_thread, reference

__all__ = ["chip", "compiled", "family", "one_thread", "reference"]

PLATFORM = "tessera_spyre.platform:SpyrePlatform"

chosen = os.environ.get("TORCH_FAKECHIP_NAME") == "spyre"
collect_ignore_glob = [] if chosen else ["*"]
if chosen:
    sys.path.insert(0, str(emulated.ROOT / "tests/spyre/vendor"))
    import_module("torch_spyre")


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path("platforms/spyre", "tests/spyre/vendor")


@pytest.fixture(scope="session")
def sizes() -> dict[str, int]:
    """Of the tiny models: halves of heads are whole sticks."""
    return {"head_dim": 128}
