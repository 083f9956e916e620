"""A server answers as the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.command_line import serves_as_the_reference
from tests.platforms.emulated import Family
from tests.vendors.chosen import PLATFORM, python_path

pytestmark = pytest.mark.compiler


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path()}
    serves_as_the_reference(PLATFORM.name, PLATFORM.path, family("llama"), tmp_path, environment, dtype=PLATFORM.dtype)
