"""When they say that they can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.platform import DeviceInfo
from tessera_xla.probe import torch_tpu, torch_xla


def machine(root: Path, *devices: tuple[str, str]) -> Path:
    """devices: vendor and class of each device on the PCI bus."""
    for number, (vendor, kind) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    return root


def nothing(_package: str) -> bool:
    return False


def everything(_package: str) -> bool:
    return True


@pytest.mark.parametrize("others", [(), (("0x10de", "0x120000"), ("0x1ae0", "0x020000"))])
def test_without_a_chip_torch_tpu_does_not_run(tmp_path: Path, others: tuple[tuple[str, str], ...]) -> None:
    answer = torch_tpu(machine(tmp_path, *others), everything)
    assert (answer.score, answer.reason) == (0, "no TPU on this machine's PCI bus")


def test_chips_without_torch_tpu_say_what_to_install(tmp_path: Path) -> None:
    answer = torch_tpu(machine(tmp_path, ("0x1ae0", "0x120000")), nothing)
    assert (answer.score, answer.reason) == (0, "1 TPU chip, but not torch-tpu; install tessera-xla[tpu]")


def test_it_scores_below_the_platform_for_tpus(tmp_path: Path) -> None:
    answer = torch_tpu(machine(tmp_path, ("0x1ae0", "0x120000"), ("0x1ae0", "0x120000")), everything)
    assert 0 < answer.score < 100
    assert answer.reason == "2 TPU chips, compiled by torch-tpu; experimental, never run on one"
    assert answer.devices == (DeviceInfo("TPU 0000:00:00.0", 0), DeviceInfo("TPU 0000:00:01.0", 1))


def test_torch_xla_runs_where_pjrt_is_told_a_device() -> None:
    assert torch_xla({"PJRT_DEVICE": "CPU"}, nothing).reason == "torch_xla is not installed"
    assert torch_xla({}, everything).reason == "PJRT_DEVICE is not set: set it to CPU to try it, or to TPU"
    answer = torch_xla({"PJRT_DEVICE": "CPU"}, everything)
    assert (answer.score, answer.devices) == (1, (DeviceInfo("CPU", 0),))
