"""A server on `spyre`, from the command line to the stream, over the emulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.emulated import Family, served_answers
from tests.spyre.conftest import PLATFORM, python_path
from tests.spyre.test_engine import DTYPE

pytestmark = pytest.mark.compiler


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    served, expected = (
        served_answers(platform, family("llama"), tmp_path / name, {"PYTHONPATH": python_path()}, DTYPE)
        for name, platform in (("spyre", PLATFORM), ("reference", "tessera.testing:ReferencePlatform"))
    )
    assert served == expected
    assert "(platform spyre)" in (tmp_path / "spyre").read_text()
