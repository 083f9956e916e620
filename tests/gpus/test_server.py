"""A server on a platform for GPUs, from the command line to the stream, over the chip that stands in for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpus.conftest import PLATFORMS, python_path
from tests.platforms.emulated import Family, served_answers

pytestmark = pytest.mark.compiler


def test_it_serves_what_the_reference_does(family: Family, chip: Any, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path(), "TRITON_INTERPRET": "1"}
    served, expected = (
        served_answers(platform, family("llama"), tmp_path / name, environment)
        for name, platform in (("gpu", PLATFORMS["cuda"]), ("reference", "tessera.testing:ReferencePlatform"))
    )
    assert served == expected
    assert "(platform cuda)" in (tmp_path / "gpu").read_text()
