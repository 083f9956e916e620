"""`neuron` from the command line: found on a machine with a chip, and a server answers as the reference does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.neuron.conftest import PLATFORM, python_path
from tests.platforms.command_line import is_chosen, serves_as_the_reference
from tests.platforms.emulated import Family

pytestmark = pytest.mark.compiler


def test_it_is_found_and_chosen(tmp_path: Path) -> None:
    files = {"dev/neuron0": ""}
    is_chosen(
        "neuron", files, tmp_path, {"PYTHONPATH": python_path()},
        devices=["Neuron device 0"],
        reason="1 Neuron device, compiled by torch-neuronx 2.14.0; experimental, never run on one",
        vendor=("torch-neuronx", "2.14.0"),
    )  # fmt: skip


def test_it_serves_what_the_reference_does(family: Family, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": python_path()}
    serves_as_the_reference("neuron", PLATFORM, family("llama"), tmp_path, environment)
