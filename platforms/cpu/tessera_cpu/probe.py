"""Any machine that runs Python has a processor."""

from __future__ import annotations

import platform

from tessera.platform import DeviceInfo, Probe
from tessera_cpu.memory import figures


def probe() -> Probe:
    name = _model_name()
    return Probe(10, f"{name}, torch's kernels", (DeviceInfo(name, 0, figures().total),))


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.lower().startswith(("model name", "cpu\t")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # no Linux: the general name below
    return platform.processor() or platform.machine()
