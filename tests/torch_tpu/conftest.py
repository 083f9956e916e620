"""Engines on torch-tpu's `tpu`, over an emulated device of that name, with a stand-in for torch_tpu.

A process has one emulated device, so these tests have a stage of their own, which names it, and are not collected
elsewhere: `TORCH_FAKECHIP_NAME=tpu pytest tests/torch_tpu`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from tests.platforms import emulated
from tests.platforms.emulated import chip, compiled, family, one_thread, reference, sizes

__all__ = ["chip", "compiled", "family", "one_thread", "reference", "sizes"]

PLATFORM = "tessera_xla.platform:TorchTpuPlatform"

chosen = os.environ.get("TORCH_FAKECHIP_NAME") == "tpu"
collect_ignore_glob = [] if chosen else ["*"]
if chosen:
    sys.path.insert(0, str(emulated.ROOT / "tests/torch_tpu/vendor"))
    import_module("torch_tpu")


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path("platforms/xla", "tests/torch_tpu/vendor")
