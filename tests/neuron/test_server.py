"""A server on `neuron`, from the command line to the stream, over the emulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.neuron.conftest import PLATFORM, python_path
from tests.platforms.emulated import Family, served_answers

pytestmark = pytest.mark.compiler


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    served, expected = (
        served_answers(platform, family("llama"), tmp_path / name, {"PYTHONPATH": python_path()})
        for name, platform in (("neuron", PLATFORM), ("reference", "tessera.testing:ReferencePlatform"))
    )
    assert served == expected
    assert "(platform neuron)" in (tmp_path / "neuron").read_text()
