"""The library's mixers that keep a state for each request."""

from __future__ import annotations

from collections.abc import Sequence

from tessera_triton.delta_net import TritonGatedDeltaNet
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.mamba2 import TritonMamba2
from tessera_triton.short_convolution import TritonShortConvolution
from tessera_triton.state import TritonState

_MIXERS = (TritonGatedDeltaNet, TritonMamba2, TritonShortConvolution)


def state_mixers(facts: DeviceFacts, launch: Launcher | None = None) -> Sequence[TritonState]:
    """The backends for a device. launch: by default, to the device."""
    return [mixer(facts, launch) for mixer in _MIXERS]
