"""Whether they can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import counted, pci_devices

GOOGLE, TPU_CLASS = "0x1ae0", "0x1200"
"""Of a PCI device in sysfs: its vendor, and how the class of an accelerator begins."""
SCORE = 40
"""Below that of tessera-tpu, which has kernels of its own and uses all chips."""


def torch_tpu(root: Path = Path("/"), installed: Callable[[str], bool] | None = None) -> Probe:
    """From sysfs alone: only one process may open a TPU."""
    chips = pci_devices(root, GOOGLE, TPU_CLASS)
    if not chips:
        return Probe(0, "no TPU on this machine's PCI bus")
    named = counted(len(chips), "TPU chip")
    if not (installed or _installed)("torch_tpu"):
        return Probe(0, f"{named}, but not torch-tpu; install tessera-xla[tpu]")
    devices = tuple(DeviceInfo(f"TPU {chip.name}", number) for number, chip in enumerate(chips))
    return Probe(SCORE, f"{named}, compiled by torch-tpu; experimental, never run on one", devices)


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
