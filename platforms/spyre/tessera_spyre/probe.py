"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe

_IBM, _ACCELERATOR = "0x1014", "0x1200"
"""Of a PCI device in sysfs: its vendor, and how its class begins."""


def probe(root: Path = Path("/")) -> Probe:
    """From sysfs and /dev alone: neither torch nor the vendor's runtime is loaded."""
    cards = [card for card in sorted((root / "sys/bus/pci/devices").glob("*")) if _is_card(card)]
    if not cards:
        return Probe(0, "there is no accelerator of IBM on the PCI bus")
    named = f"{len(cards)} Spyre card{'s' if len(cards) > 1 else ''}"
    shut = [group for card in cards if not os.access(group := _vfio(root, card), os.R_OK | os.W_OK)]
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


def _is_card(card: Path) -> bool:
    return _text(card / "vendor") == _IBM and _text(card / "class").startswith(_ACCELERATOR)


def _vfio(root: Path, card: Path) -> Path:
    """The file in /dev through which programs use a card."""
    return root / "dev/vfio" / (card / "iommu_group").resolve().name


def _text(file: Path) -> str:
    """Nothing if there is no such file."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
