"""The GPUs that the kernel's drivers list in sysfs, read without torch and without Level Zero, which take seconds to
load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tessera.platform.probing import NoDeviceError, inaccessible, numbered, read_number

DRM = "sys/class/drm"
_INTEL = 0x8086
_DRIVERS = ("xe", "i915")
_OF_PROCESSORS = "0000:00:02.0"
"""The PCI address of every GPU that is part of a processor."""


@dataclass(frozen=True)
class Card:
    """driver: "xe" or "i915". memory: its own, in bytes; 0 if it has none, or the driver does not say. integrated: it
    is part of a processor and uses the host's memory."""

    name: str
    driver: str
    memory: int
    integrated: bool


def cards(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Card]:
    """The cards that this process may use, those with memory of their own first, as Level Zero orders them. root: of
    the file system. environment: its variables choose cards. Raises NoDeviceError."""
    found = list(_cards(root))
    if not found:
        raise NoDeviceError("the kernel's drivers for Intel GPUs (xe, i915) find none")
    able = [card for card, nodes in found if len(inaccessible(nodes)) < len(nodes)]
    if not able:
        raise NoDeviceError(
            f"there is {found[0][0].name}, but its file in /dev/dri cannot be opened: add the user to the group "
            "render, or start the container with --device=/dev/dri --group-add render"
        )
    ordered = sorted(able, key=lambda card: card.integrated)
    chosen = _visible(ordered, environment.get("ZE_AFFINITY_MASK", ""))
    chosen = _visible(chosen, _selected(environment.get("ONEAPI_DEVICE_SELECTOR", "")))
    if not chosen:
        raise NoDeviceError("the environment hides every Intel GPU (ZE_AFFINITY_MASK, ONEAPI_DEVICE_SELECTOR)")
    return chosen


def _visible(ordered: list[Card], chosen: str) -> list[Card]:
    """Those that a list of numbers chooses, such as 0,2 or 0.1 for a part of the first. All of them if it is empty, or
    names cards otherwise."""
    numbers = [word.strip().partition(".")[0] for word in chosen.split(",")]
    if not all(number.isdecimal() for number in numbers):
        return ordered
    return [card for index, card in enumerate(ordered) if str(index) in numbers]


def _selected(selector: str) -> str:
    """The numbers in SYCL's selector of devices, such as level_zero:0,1; "" where it has none."""
    backend, _, numbers = selector.partition(":")
    return numbers if backend in ("level_zero", "*") and ";" not in numbers else ""


def _cards(root: Path) -> Iterator[tuple[Card, list[Path]]]:
    """Each card, and the files through which programs use it."""
    for folder in numbered(root / DRM, "card"):
        device = folder / "device"
        driver = (device / "driver").resolve().name
        if read_number(device / "vendor") != _INTEL or driver not in _DRIVERS:
            continue
        integrated = device.resolve().name == _OF_PROCESSORS
        kind = "integrated Intel GPU" if integrated else "Intel GPU"
        card = Card(
            f"{kind} {read_number(device / 'device'):#06x}", driver, 0 if integrated else _memory(folder), integrated
        )
        yield card, [root / "dev/dri" / node.name for node in (device / "drm").glob("renderD*")]


def _memory(folder: Path) -> int:
    """Of all tiles as xe says it, else as some versions of i915 do."""
    tiles = sum(read_number(file) for file in (folder / "device").glob("tile*/physical_vram_size_bytes"))
    return tiles or read_number(folder / "lmem_total_bytes")
