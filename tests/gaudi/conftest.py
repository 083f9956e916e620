"""Engines on `gaudi` over an emulated `hpu` device, with a stand-in for SynapseAI's extension of torch.

A process has one emulated device, so these tests have a stage of their own, which names it, and are not collected
elsewhere: `TORCH_FAKECHIP_NAME=hpu PT_HPU_LAZY_MODE=1 pytest tests/gaudi`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from tests.platforms import emulated
from tests.platforms.emulated import chip, family, one_thread, reference, sizes

__all__ = ["chip", "family", "one_thread", "reference", "sizes"]

PLATFORM = "tessera_gaudi.platform:GaudiPlatform"

chosen = os.environ.get("TORCH_FAKECHIP_NAME") == "hpu"
collect_ignore_glob = [] if chosen else ["*"]
if chosen:
    sys.path.insert(0, str(emulated.ROOT / "tests/gaudi/vendor"))
    import_module("habana_frameworks.torch")  # before anything asks for torch's accelerator, as torch would load it


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path("platforms/gaudi", "tests/gaudi/vendor")
