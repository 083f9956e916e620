"""Engines on vendors' platforms over an emulated device, with a stand-in for the vendor's modules.

A process has one emulated device, so each platform has a stage of its own, which names its device; without a name
nothing here is collected: `TORCH_FAKECHIP_NAME=npu pytest tests/vendors`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.platforms import emulated
from tests.platforms.emulated import chip, compiled, family, one_thread, reference
from tests.vendors.platforms import VENDOR_PLATFORMS

__all__ = ["chip", "compiled", "family", "one_thread", "reference"]

OF_ALL = ("test_conformance.py", "test_engine.py", "test_media.py", "test_server.py")

collect_ignore_glob = ["*"]
if "TORCH_FAKECHIP_NAME" in os.environ:
    if os.environ["TORCH_FAKECHIP_NAME"] not in VENDOR_PLATFORMS:
        raise pytest.UsageError(f"TORCH_FAKECHIP_NAME is none of {', '.join(VENDOR_PLATFORMS)}")
    from tests.vendors.chosen import PLATFORM, STAND_IN

    tests = {file.name for file in Path(__file__).parent.glob("test_*.py")}
    collect_ignore_glob = sorted(tests - {*OF_ALL, *PLATFORM.files})
    sys.path.insert(0, str(emulated.ROOT / STAND_IN))
    import_module(PLATFORM.module)  # before anything asks for torch's accelerator, as torch would load it


@pytest.fixture(scope="session")
def sizes() -> dict[str, int]:
    return dict(PLATFORM.sizes)
