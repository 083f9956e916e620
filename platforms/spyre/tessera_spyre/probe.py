"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import counted, inaccessible, pci_devices

_IBM, _ACCELERATOR = "0x1014", "0x1200"
"""Of a PCI device in sysfs: its vendor, and how its class begins."""


def probe(root: Path = Path("/")) -> Probe:
    """From sysfs and /dev alone: neither torch nor the vendor's runtime is loaded."""
    cards = pci_devices(root, _IBM, _ACCELERATOR)
    if not cards:
        return Probe(0, "there is no accelerator of IBM on the PCI bus")
    named = counted(len(cards), "Spyre card")
    shut = inaccessible(_vfio(root, card) for card in cards)
    if shut:
        return Probe(
            0,
            f"there is {named}, but /dev/vfio/{shut[0].name} cannot be opened: bind the cards to vfio-pci and give "
            "this user or container access to them",
        )
    if find_spec("torch_spyre") is None:
        return Probe(0, f"there is {named}, but not torch_spyre: build it with the vendor's runtime")
    devices = tuple(DeviceInfo(f"Spyre {card.name}", number) for number, card in enumerate(cards))
    return Probe(100, f"{named}, compiled by torch_spyre; experimental, never run on one", devices)


def _vfio(root: Path, card: Path) -> Path:
    """The file in /dev through which programs use a card."""
    return root / "dev/vfio" / (card / "iommu_group").resolve().name
