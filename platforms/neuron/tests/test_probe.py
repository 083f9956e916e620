"""What the driver's files in /dev say of the devices. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tessera_neuron import probe as module


@pytest.fixture
def installed(monkeypatch):
    """installed("2.14.3.0"): a version of torch-neuronx, or none."""

    def version(found):
        monkeypatch.setattr(module, "_version", lambda: found)

    return version


@pytest.fixture
def root(tmp_path):
    for name in ("neuron10", "neuron2", "neuron_control"):
        node = tmp_path / "dev" / name
        node.parent.mkdir(exist_ok=True)
        node.touch()
    return tmp_path


def test_the_probe_counts_the_devices(root, installed):
    installed("2.14.3.0.1")
    found = module.probe(root)
    assert found.score == 100
    assert found.reason == "2 Neuron devices, compiled by torch-neuronx 2.14.3.0.1; experimental, never run on one"
    assert [(device.name, device.index) for device in found.devices] == [
        ("Neuron device 2", 0),
        ("Neuron device 10", 1),
    ]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "there is 2 Neuron devices, but not torch-neuronx: install it from the vendor's package index"),
        (
            "2.9.0.2.13.1",
            "there is 2 Neuron devices, but torch-neuronx 2.9.0.2.13.1, which has no device of torch: install 2.13",
        ),
    ],
)
def test_what_is_missing_is_told(root, installed, version, reason):
    installed(version)
    found = module.probe(root)
    assert (found.score, found.reason) == (0, reason)


def test_a_machine_without_devices_has_none(tmp_path):
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (0, "the kernel's driver for Neuron devices finds none")


def test_a_container_without_access_is_told_what_to_do(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert module.probe(root).reason == (
        "there is 2 Neuron devices, but /dev/neuron2 cannot be opened: start the container with --device=/dev/neuronN"
    )


def test_the_probe_imports_neither_torch_nor_the_vendors_modules():
    program = "import sys; sys.modules.update(torch=None); from tessera_neuron import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
