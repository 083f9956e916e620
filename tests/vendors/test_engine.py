"""Whole engines answer as the reference, in launches that were all captured or compiled before the first step, and no
step reads the device behind its back where the host runs ahead of it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from tests.platforms.emulated import Family, Reference, answers, answers_with_drafts
from tests.vendors.chosen import PLATFORM, start

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("name", PLATFORM.families)
def test_answers_are_the_reference_s(
    chip: Any, compiled: list[str], family: Family, reference: Reference, name: str
) -> None:
    expected = reference(name, dtype=PLATFORM.dtype)
    with start(family(name)) as run:
        if PLATFORM.programs is not None:
            runner = run.executor.runner
            assert set(runner.executables) == set(runner.shapes.keys())
            assert len(compiled) == len(runner.executables) == PLATFORM.programs
        chip.reset()
        with nullcontext() if PLATFORM.reads else chip.refused_reads():
            assert answers(run) == answers(expected)
            assert answers(run, 2) == answers(expected, 2)  # prefix hits
        assert PLATFORM.reads or chip.reads() == {}
        assert run.engine.info.notes == []
        assert len(compiled) == (PLATFORM.programs or 0)


def test_drafts_change_no_token(compiled: list[str], family: Family, reference: Reference) -> None:
    """They are verified in launches of their own, which are captured or compiled too."""
    expected = answers(reference("llama", dtype=PLATFORM.dtype), 8)
    found, kinds = answers_with_drafts(partial(start, family("llama")), expected)
    assert (found, kinds) == (expected, PLATFORM.draft_kinds)
    assert len(compiled) == (0 if PLATFORM.programs is None else 2 * 2 + 1)
