"""Whether there is a chip in this machine: a real one's driver would be asked."""

from __future__ import annotations

from importlib.util import find_spec

from tessera.platform import DeviceInfo, Probe

MEMORY = 256 << 20


def native() -> Probe:
    return _found(100, "own kernels and attention")


def static() -> Probe:
    return _found(80, "launches of a few shapes, captured")


def bronze() -> Probe:
    return _found(50, "core's reference ops")


def _found(score: int, how: str) -> Probe:
    if find_spec("torch_fakechip") is None:
        return Probe(0, "torch_fakechip, the chip's extension of torch, is not installed")
    return Probe(score, f"two pretended chips, {how}", tuple(DeviceInfo("fakechip", i, MEMORY) for i in range(2)))
