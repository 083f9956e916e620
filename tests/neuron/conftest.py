"""Engines on `neuron` over an emulated device of that name, with a stand-in for torch_neuronx.

A process has one emulated device, so these tests have a stage of their own, which names it, and are not collected
elsewhere: `TORCH_FAKECHIP_NAME=neuron pytest tests/neuron`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from tests.platforms import emulated
from tests.platforms.emulated import chip, compiled, family, one_thread, reference, sizes

__all__ = ["chip", "compiled", "family", "one_thread", "reference", "sizes"]

PLATFORM = "tessera_neuron.platform:NeuronPlatform"

chosen = os.environ.get("TORCH_FAKECHIP_NAME") == "neuron"
collect_ignore_glob = [] if chosen else ["*"]
if chosen:
    sys.path.insert(0, str(emulated.ROOT / "tests/neuron/vendor"))
    import_module("torch_neuronx")


def python_path() -> str:
    """For processes that the tests start."""
    return emulated.python_path("platforms/neuron", "tests/neuron/vendor")
