"""What sysfs says of the accelerators, and what the probe makes of it. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tessera_gaudi import probe as module
from tessera_gaudi.sysfs import cards


def card(root: Path, number: int, kind: str = "GAUDI3", *, vendor: str = "0x1da3", status: str = "Operational") -> None:
    """Adds an accelerator to the tree."""
    device = root / f"sys/class/accel/accel{number}/device"
    device.mkdir(parents=True)
    for name, text in {"vendor": vendor, "device_type": kind, "status": status}.items():
        (device / name).write_text(f"{text}\n", encoding="utf-8")
    node = root / f"dev/accel/accel{number}"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace())


def test_accelerators_come_by_number(tmp_path):
    for number in (10, 2):
        card(tmp_path, number, f"GAUDI{2 + number % 3}")
    assert [(found.node.name, found.name) for found in cards(tmp_path)] == [
        ("accel2", "Intel Gaudi 4"),
        ("accel10", "Intel Gaudi 3"),
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("GAUDI", "Intel Gaudi"), ("GAUDI2", "Intel Gaudi 2"), ("Gaudi3 something", "Intel Gaudi 3")],
)
def test_their_names_are_the_drivers(tmp_path, kind, name):
    card(tmp_path, 0, kind)
    assert cards(tmp_path)[0].name == name


@pytest.mark.usefixtures("installed")
def test_the_probe_names_the_accelerators(tmp_path):
    card(tmp_path, 0)
    card(tmp_path, 1)
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (100, "Intel Gaudi 3, SynapseAI's ops and HPU graphs")
    assert [(device.name, device.index) for device in found.devices] == [("Intel Gaudi 3", 0), ("Intel Gaudi 3", 1)]


def test_without_the_vendors_torch_the_probe_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    card(tmp_path, 0, "GAUDI2")
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (
        0,
        "there is Intel Gaudi 2, but not habana_frameworks: install the Gaudi software's own build of torch",
    )


def test_accelerators_of_other_vendors_are_none(tmp_path):
    card(tmp_path, 0, vendor="0x1002")
    assert module.probe(tmp_path).reason == "the kernel's driver for Gaudi (habanalabs) finds none"


def test_an_accelerator_that_does_not_work_is_told(tmp_path):
    card(tmp_path, 0, status="Malfunction")
    assert module.probe(tmp_path).reason == (
        "there is Intel Gaudi 3, but its driver says 'malfunction': look at dmesg and hl-smi"
    )


def test_a_container_without_access_is_told_what_to_do(tmp_path):
    card(tmp_path, 0)
    (tmp_path / "dev/accel/accel0").unlink()
    assert module.probe(tmp_path).reason == (
        "there is Intel Gaudi 3, but accel0 in /dev/accel cannot be opened: start the container with --runtime=habana "
        "or --device=/dev/accel"
    )


def test_the_probe_imports_neither_torch_nor_the_vendors_modules():
    program = "import sys; sys.modules.update(torch=None); from tessera_gaudi import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
