"""What probes read, from trees that are made up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import (
    NoDeviceError,
    counted,
    inaccessible,
    numbered,
    pci_devices,
    probe_cards,
    read_number,
    read_text,
)


def written(file: Path, text: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_text_is_stripped_and_one_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert read_text(written(tmp_path / "vendor", "0x1234\n")) == "0x1234"
    assert read_text(tmp_path / "none") == ""
    assert read_text(tmp_path) == ""
    assert read_text(written(tmp_path / "binary", b"\xff\xfe")) == ""


@pytest.mark.parametrize(("text", "number"), [("0x10\n", 16), ("17", 17), ("", 0), ("many", 0)])
def test_a_number_has_any_base(tmp_path: Path, text: str, number: int) -> None:
    assert read_number(written(tmp_path / "memory", text)) == number


def test_entries_come_by_their_number(tmp_path: Path) -> None:
    for name in ("chip10", "chip2", "chip0", "chip_control", "mychip1"):
        written(tmp_path / name, "")
    assert [entry.name for entry in numbered(tmp_path, "chip")] == ["chip0", "chip2", "chip10"]
    assert numbered(tmp_path / "none", "chip") == []


def test_devices_on_the_bus_have_a_vendor_and_a_class(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    for address, vendor, kind in (
        ("0000:00:05.0", "0x1234", "0x120000"),
        ("0000:00:04.0", "0x1234", "0x120000"),
        ("0000:00:06.0", "0x1234", "0x030000"),
        ("0000:00:07.0", "0x4321", "0x120000"),
    ):
        written(devices / address / "vendor", f"{vendor}\n")
        written(devices / address / "class", f"{kind}\n")
    accelerators = pci_devices(tmp_path, "0x1234", "0x1200")
    assert [device.name for device in accelerators] == ["0000:00:04.0", "0000:00:05.0"]
    assert [device.name[-4:] for device in pci_devices(tmp_path, "0x1234")] == ["04.0", "05.0", "06.0"]
    assert pci_devices(tmp_path / "none", "0x1234") == []


def test_files_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [written(tmp_path / name, "") for name in ("chip0", "chip1")]
    assert inaccessible(nodes) == []
    monkeypatch.setattr(os, "access", lambda path, mode: path.name == "chip0" and mode == os.R_OK | os.W_OK)
    assert inaccessible(nodes) == [nodes[1]]


def test_a_count_has_its_noun() -> None:
    assert [counted(number, "card") for number in (1, 2)] == ["1 card", "2 cards"]


@dataclass(frozen=True)
class Found:
    name: str
    memory: int = 0


@pytest.mark.parametrize(("score", "devices"), [(80, (DeviceInfo("A", 0, 7), DeviceInfo("B", 1))), (0, ())])
def test_the_first_card_decides_for_all(score: int, devices: tuple[DeviceInfo, ...]) -> None:
    answer = probe_cards(lambda: [Found("A", 7), Found("B")], lambda card: (score, f"there is {card.name}"))
    assert answer == Probe(score, "there is A", devices)


def test_why_there_is_no_card_is_the_answer() -> None:
    def cards() -> list[Found]:
        raise NoDeviceError("the driver finds none")

    assert probe_cards(cards, lambda card: (100, card.name)) == Probe(0, "the driver finds none")
