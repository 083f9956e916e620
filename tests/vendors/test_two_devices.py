"""Two devices, each in a process of its own, answer as one."""

from __future__ import annotations

import pytest

from tests.platforms.emulated import Family, Reference, answers
from tests.vendors.chosen import PLATFORM, python_path, start

pytestmark = pytest.mark.compiler

UNCAPTURED = "launches are not captured: the collectives of the group tensor cannot be"


def test_two_devices_answer_as_one(family: Family, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with start(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert run.engine.info.notes == ([UNCAPTURED] if PLATFORM.programs is None else [])
        assert answers(run, 4) == answers(reference("llama", dtype=PLATFORM.dtype), 4)
