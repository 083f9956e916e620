"""Whether they can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe

GOOGLE, TPU_CLASS = "0x1ae0", "0x1200"
"""Of a PCI device in sysfs: its vendor, and how the class of an accelerator begins."""
SCORE = 40
"""Below that of tessera-tpu, which has kernels of its own and uses all chips."""


def torch_tpu(root: Path = Path("/"), installed: Callable[[str], bool] | None = None) -> Probe:
    """From sysfs alone: only one process may open a TPU."""
    chips = [device for device in sorted((root / "sys/bus/pci/devices").glob("*")) if _is_tpu(device)]
    if not chips:
        return Probe(0, "no TPU on this machine's PCI bus")
    if not (installed or _installed)("torch_tpu"):
        return Probe(0, f"{_counted(len(chips))}, but not torch-tpu; install tessera-xla[tpu]")
    devices = tuple(DeviceInfo(f"TPU {chip.name}", number) for number, chip in enumerate(chips))
    return Probe(SCORE, f"{_counted(len(chips))}, compiled by torch-tpu; experimental, never run on one", devices)


def torch_xla(environment: Mapping[str, str] = os.environ, installed: Callable[[str], bool] | None = None) -> Probe:
    """PJRT_DEVICE says which device PJRT opens; without it torch_xla would look for one."""
    if not (installed or _installed)("torch_xla"):
        return Probe(0, "torch_xla is not installed")
    device = environment.get("PJRT_DEVICE")
    if not device:
        return Probe(0, "PJRT_DEVICE is not set: set it to CPU to try it, or to TPU")
    return Probe(1, f"PJRT's {device}, compiled by torch_xla, whose development has ended", (DeviceInfo(device, 0),))


def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _counted(chips: int) -> str:
    return f"{chips} TPU chip{'s' if chips > 1 else ''}"


def _is_tpu(device: Path) -> bool:
    return _text(device / "vendor") == GOOGLE and _text(device / "class").startswith(TPU_CLASS)


def _text(file: Path) -> str:
    """Nothing if there is no such file."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
