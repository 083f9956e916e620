"""From the command line, the platform is found on a machine with such devices, and chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.command_line import is_chosen
from tests.vendors.chosen import PLATFORM, python_path

pytestmark = pytest.mark.compiler


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    machine = PLATFORM.machine
    assert machine is not None
    is_chosen(
        PLATFORM.name, machine.files, tmp_path, {"PYTHONPATH": python_path()},
        devices=machine.devices, reason=machine.reason, vendor=machine.distribution,
    )  # fmt: skip
