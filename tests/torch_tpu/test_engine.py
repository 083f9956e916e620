"""Whole engines on torch-tpu's `tpu` over an emulated device whose programs have fixed shapes: they answer as the
reference, in programs that were all compiled before the first step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.platforms.emulated import Family, Reference, answers, answers_with_drafts, on_device
from tests.platforms.engine_run import EngineRun
from tests.torch_tpu.conftest import PLATFORM

pytestmark = pytest.mark.compiler

BLOCK = 128
SHAPES = 3 + 1
"""Rows 1, 2 and 4 that decode and prompts of 128 tokens, all over 2 blocks."""


def on_tpu(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORM, **{"block_size": BLOCK, **flags})


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_answers_are_the_reference_s(compiled: list[str], family: Family, reference: Reference, name: str) -> None:
    with on_tpu(family(name)) as run:
        runner = run.executor.runner
        assert set(runner.executables) == set(runner.shapes.keys())
        assert len(compiled) == len(runner.executables) == SHAPES
        assert answers(run) == answers(reference(name))
        assert answers(run, 2) == answers(reference(name), 2)  # prefix hits
        assert run.engine.info.notes == []
        assert len(compiled) == SHAPES


def test_drafts_change_no_token(compiled: list[str], family: Family, reference: Reference) -> None:
    """They are verified in programs of their own, which are compiled too."""
    expected = answers(reference("llama"), 8)
    found, kinds = answers_with_drafts(partial(on_tpu, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify", "prefill"})
    assert len(compiled) == 2 * 2 + 1
