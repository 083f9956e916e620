"""Any machine that runs Python has a processor."""

from __future__ import annotations

from tessera.platform import DeviceInfo, Probe
from tessera_cpu.machine import figures, processor


def probe() -> Probe:
    name = processor()
    return Probe(10, f"{name}, torch's kernels", (DeviceInfo(name, 0, figures().total),))
