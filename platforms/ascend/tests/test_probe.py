"""What the probe makes of the driver's files. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tessera_ascend import probe as module


def device(root: Path, *names: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    for name in names:
        (root / "dev" / name).touch()


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: SimpleNamespace())


@pytest.mark.usefixtures("installed")
def test_the_probe_counts_the_drivers_files(tmp_path):
    device(tmp_path, "davinci_manager", "davinci10", "davinci2", "davinci")
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (100, "2 Ascend NPUs, torch_npu's ops and ACL graphs")
    assert [(one.name, one.index) for one in found.devices] == [("Ascend NPU 2", 0), ("Ascend NPU 10", 1)]


def test_without_torch_npu_the_probe_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    device(tmp_path, "davinci_manager", "davinci0")
    assert module.probe(tmp_path).reason == (
        "there is 1 Ascend NPU, but not torch_npu: install CANN and the torch_npu of this torch's version"
    )


@pytest.mark.usefixtures("installed")
def test_a_container_without_the_manager_is_told_what_to_do(tmp_path):
    device(tmp_path, "davinci0")
    assert module.probe(tmp_path).reason == (
        "there is 1 Ascend NPU, but /dev/davinci_manager cannot be opened: add the user to the group HwHiAiUser, or "
        "start the container with --device=/dev/davinciN --device=/dev/davinci_manager"
    )


def test_a_machine_without_the_driver_has_none(tmp_path):
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (0, "the kernel's driver for Ascend NPUs finds none")


def test_the_probe_imports_no_torch():
    program = "import sys; sys.modules.update(torch=None); from tessera_ascend import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
