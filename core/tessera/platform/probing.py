"""What probes read of a machine without loading torch or a vendor's runtime, which take seconds: sysfs, and the files
in /dev through which programs use devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tessera.platform.platform import DeviceInfo, Probe


class NoDeviceError(Exception):
    """There is no device that this process may use; the message says why, and what to do."""


class Card(Protocol):
    """A device that a probe found."""

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> int:
        """Bytes; 0 if unknown."""


C = TypeVar("C", bound=Card)


def probe_cards(cards: Callable[[], Sequence[C]], rate: Callable[[C], tuple[int, str]]) -> Probe:
    """What a probe answers of a machine's cards. cards: lists them, the first of which decides, or raises
    NoDeviceError. rate: a card's score, and the reason."""
    try:
        found = cards()
    except NoDeviceError as error:
        return Probe(0, str(error))
    score, reason = rate(found[0])
    devices = [DeviceInfo(card.name, index, card.memory) for index, card in enumerate(found)]
    return Probe(score, reason, tuple(devices) if score else ())


def read_text(file: Path) -> str:
    """A small file of the kernel's, without the white space around it; "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_number(file: Path) -> int:
    """A number in any base that Python writes, such as 0x10de; 0 if there is none."""
    try:
        return int(read_text(file), 0)
    except ValueError:
        return 0


def numbered(folder: Path, prefix: str) -> list[Path]:
    """The entries of a folder that are named prefix and a number, such as /dev/neuron0, by their number."""
    entries = (entry for entry in folder.glob(f"{prefix}*") if re.fullmatch(rf"{prefix}\d+", entry.name))
    return sorted(entries, key=lambda entry: int(entry.name.removeprefix(prefix)))


def pci_devices(root: Path, vendor: str, device_class: str = "") -> list[Path]:
    """The folders in sysfs of the devices on the PCI bus, in its order. root: of the file system. vendor: its number,
    such as 0x1ae0. device_class: how the class begins, such as 0x1200, an accelerator; "" is any."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    return [
        device
        for device in devices
        if read_text(device / "vendor") == vendor and read_text(device / "class").startswith(device_class)
    ]


def inaccessible(nodes: Iterable[Path]) -> list[Path]:
    """Those files of /dev that this process may not read and write."""
    return [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]


def counted(number: int, noun: str) -> str:
    """Such as "1 card" and "4 cards"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
