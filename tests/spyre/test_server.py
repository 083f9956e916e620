"""`spyre` from the command line: found on a machine with a card, and a server answers as the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.command_line import is_chosen, serves_as_the_reference
from tests.platforms.emulated import Family
from tests.spyre.conftest import PLATFORM, python_path
from tests.spyre.test_engine import DTYPE

pytestmark = pytest.mark.compiler

CARD = "sys/bus/pci/devices/0000:00:00.0"


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    files = {
        f"{CARD}/vendor": "0x1014",
        f"{CARD}/class": "0x120000",
        f"{CARD}/iommu_group": Path("sys/kernel/iommu_groups/7"),
        "dev/vfio/7": "",
    }
    is_chosen(
        "spyre", files, tmp_path, {"PYTHONPATH": python_path()},
        devices=["Spyre 0000:00:00.0"],
        reason="1 Spyre card, compiled by torch_spyre; experimental, never run on one",
    )  # fmt: skip


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path()}
    serves_as_the_reference("spyre", PLATFORM, family("llama"), tmp_path, environment, dtype=DTYPE)
