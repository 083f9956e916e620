"""Whole engines on `spyre` over an emulated device whose programs have fixed shapes and the ops of the published table:
they answer as the reference, in programs that were all compiled before the first step. In float16, the device's
dtype."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import TesseraError
from tests.platforms.emulated import (
    Family,
    Reference,
    answers,
    answers_with_drafts,
    on_device,
    share_a_batch,
)
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family
from tests.spyre.conftest import PLATFORM, python_path

pytestmark = pytest.mark.compiler

DTYPE = "float16"
FAMILIES = ("llama", "mixtral")
SHAPES = 3 + 1
"""Rows 1, 2 and 4 that decode and prompts of 64 tokens, all over 4 blocks of 64."""


def spyre(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORM, **{"dtype": DTYPE, "block_size": 64, **flags})


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_the_reference_s(
    chip: Any, compiled: list[str], family: Family, reference: Reference, name: str
) -> None:
    with spyre(family(name)) as run:
        runner = run.executor.runner
        assert set(runner.executables) == set(runner.shapes.keys())
        assert len(compiled) == len(runner.executables) == SHAPES
        assert {backend.name for backend, _ in runner.attention_groups} == {"sdpa"}
        chip.reset()
        assert answers(run) == answers(reference(name, dtype=DTYPE))
        assert answers(run, 2) == answers(reference(name, dtype=DTYPE), 2)  # prefix hits
        assert run.engine.info.notes == []
        assert len(compiled) == SHAPES


def test_programs_have_the_ops_of_the_published_table(family: Family) -> None:
    """All but a few, of which the card has to show whether its compiler takes them."""
    ops = import_module("torch_spyre.inductor").ops
    ops.clear()
    with spyre(family("llama")):
        assert (ops - TABLE, TABLE - ops) == (BEYOND, set())


TABLE = {
    "_to_copy", "_unsafe_view", "add", "bmm", "cat", "clone", "embedding", "expand", "index_select", "masked_fill",
    "mean", "mm", "mul", "pow", "rsqrt", "silu", "slice_scatter", "split", "split_with_sizes", "sub", "t", "transpose",
    "unsqueeze", "view",
}  # fmt: skip
"""In the published table under torch's names, casts and views among them."""
BEYOND = {"_safe_softmax", "alias", "copy", "copy_", "index_copy"}
"""Not in it, or not as compiled."""


def test_two_cards_answer_as_one(family: Family, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with spyre(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert run.engine.info.notes == []
        assert answers(run, 4) == answers(reference("llama", dtype=DTYPE), 4)


def test_drafts_change_no_token(compiled: list[str], family: Family, reference: Reference) -> None:
    """They are verified in programs of their own, which are compiled too."""
    expected = answers(reference("llama", dtype=DTYPE), 8)
    found, kinds = answers_with_drafts(partial(spyre, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify", "prefill"})
    assert len(compiled) == 2 * 2 + 1


def test_adapters_and_grammars_share_a_batch(family: Family, tmp_path: Path) -> None:
    share_a_batch(partial(spyre, family("llama")), family("llama"), tmp_path, dtype=DTYPE)


def test_what_the_card_cannot_hold_is_refused(family: Family, tmp_path: Path) -> None:
    with pytest.raises(TesseraError, match="heads of 64 elements.*serve one whose heads are a multiple of 128"):
        spyre(save_family("llama", tmp_path, head_dim=64))
    with pytest.raises(TesseraError, match="bfloat16"):
        spyre(family("llama"), dtype="bfloat16")
