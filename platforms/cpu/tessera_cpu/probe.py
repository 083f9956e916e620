"""The probe. Every machine that runs Python has a processor."""

from __future__ import annotations

from tessera.platform import DeviceInfo, Probe
from tessera_cpu import native
from tessera_cpu.machine import figures, processor


def probe() -> Probe:
    name = processor()
    if native.library() is not None:
        kernels = f"native kernels ({native.used()})"
    elif native.FILE.is_file():
        kernels = "torch's kernels alone, as the environment asks"
    else:
        kernels = (
            "torch's kernels alone, which are slower: tessera-cpu was installed without a C++ compiler; "
            "with one, install it again"
        )
    return Probe(10, f"{name}, {kernels}", (DeviceInfo(name, 0, figures().total),))
