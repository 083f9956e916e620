"""The accelerators that the kernel's driver (habanalabs) lists in sysfs, read without torch and SynapseAI, which take
seconds to load. The files are those of Linux's Documentation/ABI/testing/sysfs-driver-habanalabs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tessera.platform.probing import NoDeviceError, inaccessible, numbered, read_text

ACCEL = "sys/class/accel"
_HABANA = "0x1da3"
_OPERATIONAL = "operational"


@dataclass(frozen=True)
class Card:
    """An accelerator."""

    # as the driver says it, such as "GAUDI2"
    kind: str
    # the file in /dev through which programs use it
    node: Path
    # bytes; the driver does not say
    memory: int = 0

    @property
    def name(self) -> str:
        generation = self.kind.removeprefix("GAUDI").partition(" ")[0]
        return f"Intel Gaudi {generation}".rstrip()


def cards(root: Path = Path("/")) -> list[Card]:
    """The accelerators that this process may use, by number. root: of the file system. Raises NoDeviceError."""
    found = list(_cards(root))
    if not found:
        raise NoDeviceError("the kernel's driver for Gaudi (habanalabs) finds none")
    working = [card for card, status in found if status in ("", _OPERATIONAL)]
    if not working:
        card, status = found[0]
        raise NoDeviceError(f"there is {card.name}, but its driver says '{status}': look at dmesg and hl-smi")
    able = [card for card in working if not inaccessible([card.node])]
    if not able:
        raise NoDeviceError(
            f"there is {working[0].name}, but {working[0].node.name} in /dev/accel cannot be opened: start the "
            "container with --runtime=habana or --device=/dev/accel"
        )
    return able


def _cards(root: Path) -> Iterator[tuple[Card, str]]:
    """Each accelerator, and its status."""
    for folder in numbered(root / ACCEL, "accel"):
        device = folder / "device"
        if read_text(device / "vendor") == _HABANA:
            kind = read_text(device / "device_type").upper()
            yield Card(kind, root / "dev/accel" / folder.name), read_text(device / "status").lower()
