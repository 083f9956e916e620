"""`ascend` from the command line: found on a machine with two NPUs, and a server answers as the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ascend.conftest import PLATFORM, python_path
from tests.ascend.test_engine import DTYPE
from tests.platforms.command_line import is_chosen, serves_as_the_reference
from tests.platforms.emulated import Family

pytestmark = pytest.mark.compiler


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    files = dict.fromkeys(("dev/davinci_manager", "dev/davinci0", "dev/davinci1"), "")
    is_chosen(
        "ascend", files, tmp_path, {"PYTHONPATH": python_path()},
        devices=["Ascend NPU 0", "Ascend NPU 1"],
        reason="2 Ascend NPUs, torch_npu's ops and ACL graphs",
    )  # fmt: skip


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path()}
    serves_as_the_reference("ascend", PLATFORM, family("llama"), tmp_path, environment, dtype=DTYPE)
