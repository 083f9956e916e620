"""What the probe makes of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera_tpu.probe import chips, probe, why

ALL = {"jax", "torchax", "libtpu"}


def machine(root: Path, *devices: tuple[str, str]) -> Path:
    for number, (vendor, device) in enumerate(devices):
        folder = root / "sys/bus/pci/devices" / f"0000:00:{number:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    return root


def test_chips_are_found_on_the_bus(tmp_path: Path) -> None:
    root = machine(tmp_path, ("0x8086", "0x0063"), ("0x1ae0", "0x0063"), ("0x1ae0", "0x006f"), ("0x1ae0", "0x9999"))
    assert list(chips(root)) == ["TPU v5e", "TPU v6e"]
    assert [device.name for device in probe(root).devices] == ["TPU v5e", "TPU v6e"]


def test_a_machine_without_a_chip_is_told_so(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert (found.score, found.reason, found.devices) == (0, "no TPU on this machine's PCI bus", ())


@pytest.mark.parametrize(
    ("installed", "score", "reason"),
    [
        (ALL, 100, "TPU v6e, compiled by XLA"),
        ({"jax"}, 0, "TPU v6e, but torchax and libtpu cannot be imported; install tessera-tpu[libtpu]"),
    ],
)
def test_the_reason_says_what_is_missing(installed: set[str], score: int, reason: str) -> None:
    assert why(["TPU v6e"], installed) == (score, reason)
