"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import pci_devices, read_text

VENDOR = "0x1ae0"  # Google's number on the PCI bus
CHIPS = {
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU7x",
}
"""By number of the PCI device."""


def probe(root: Path = Path("/")) -> Probe:
    """root: of the file system, for tests."""
    found = list(chips(root))
    score, reason = why(found, {name for name in ("jax", "torchax", "libtpu") if find_spec(name) is not None})
    return Probe(score, reason, tuple(DeviceInfo(name, number) for number, name in enumerate(found)))


def why(names: list[str], installed: set[str]) -> tuple[int, str]:
    """The score of the chips with these names, and the reason. installed: names of Python packages."""
    if not names:
        return 0, "no TPU on this machine's PCI bus"
    missing = [package for package in ("jax", "torchax", "libtpu") if package not in installed]
    if missing:
        return 0, f"{names[0]}, but {' and '.join(missing)} cannot be imported; install tessera-tpu[libtpu]"
    return 100, f"{names[0]}, compiled by XLA"


def chips(root: Path) -> Iterator[str]:
    """The names of the TPUs on the PCI bus, in its order, without opening any: only one process may open a TPU."""
    numbers = (read_text(device / "device") for device in pci_devices(root, VENDOR))
    return (CHIPS[number] for number in numbers if number in CHIPS)
