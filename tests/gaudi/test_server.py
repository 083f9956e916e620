"""`gaudi` from the command line: found on a machine with two cards, and a server answers as the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gaudi.conftest import PLATFORM, python_path
from tests.platforms.command_line import is_chosen, serves_as_the_reference
from tests.platforms.emulated import Family

pytestmark = pytest.mark.compiler


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    files = {}
    for node in ("accel0", "accel1"):
        said = {"vendor": "0x1da3", "device_type": "GAUDI3", "status": "Operational"}
        files |= {f"sys/class/accel/{node}/device/{file}": text for file, text in said.items()}
        files[f"dev/accel/{node}"] = ""
    is_chosen(
        "gaudi", files, tmp_path, {"PYTHONPATH": python_path()},
        devices=["Intel Gaudi 3", "Intel Gaudi 3"],
        reason="Intel Gaudi 3, SynapseAI's ops and HPU graphs",
    )  # fmt: skip


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path()}
    serves_as_the_reference("gaudi", PLATFORM, family("llama"), tmp_path, environment)
