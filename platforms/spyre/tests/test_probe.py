"""What sysfs says of the PCI bus. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tessera_spyre import probe as module


def card(root: Path, name: str, group: int, *, vendor: str = "0x1014", kind: str = "0x120000") -> None:
    """Adds a device of the PCI bus to the tree."""
    device = root / "sys/bus/pci/devices" / name
    device.mkdir(parents=True)
    for file, text in {"vendor": vendor, "class": kind}.items():
        (device / file).write_text(f"{text}\n", encoding="utf-8")
    groups = root / f"sys/kernel/iommu_groups/{group}"
    groups.mkdir(parents=True)
    (device / "iommu_group").symlink_to(groups)
    node = root / f"dev/vfio/{group}"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace())


@pytest.mark.usefixtures("installed")
def test_the_probe_names_the_cards(tmp_path):
    card(tmp_path, "0001:00:00.0", 7)
    card(tmp_path, "0000:00:00.0", 3)
    card(tmp_path, "0000:00:01.0", 4, kind="0x020000")
    card(tmp_path, "0000:00:02.0", 5, vendor="0x1002")
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (
        100,
        "2 Spyre cards, compiled by torch_spyre; experimental, never run on one",
    )
    assert [device.name for device in found.devices] == ["Spyre 0000:00:00.0", "Spyre 0001:00:00.0"]


def test_without_torch_spyre_the_probe_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    card(tmp_path, "0000:00:00.0", 3)
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (
        0,
        "there is 1 Spyre card, but not torch_spyre: build it with the vendor's runtime",
    )


def test_a_container_without_access_is_told_what_to_do(tmp_path):
    card(tmp_path, "0000:00:00.0", 3)
    (tmp_path / "dev/vfio/3").unlink()
    assert module.probe(tmp_path).reason == (
        "there is 1 Spyre card, but /dev/vfio/3 cannot be opened: bind the cards to vfio-pci and give this user or "
        "container access to them"
    )


def test_a_machine_without_cards_has_none(tmp_path):
    assert module.probe(tmp_path).reason == "there is no accelerator of IBM on the PCI bus"


def test_the_probe_imports_neither_torch_nor_the_vendors_modules():
    program = "import sys; sys.modules.update(torch=None); from tessera_spyre import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
