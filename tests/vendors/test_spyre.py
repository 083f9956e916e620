"""`spyre` alone: the ops of the published table, its attention, and what the card cannot hold."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tessera.errors import TesseraError
from tests.platforms.emulated import Family
from tests.platforms.tiny_models import save_family
from tests.vendors.chosen import PLATFORM, start

pytestmark = pytest.mark.compiler


def test_attention_runs_under_a_mask(family: Family) -> None:
    for name in PLATFORM.families:
        with start(family(name), enforce_eager=True) as run:
            assert {backend.name for backend, _ in run.executor.runner.attention_groups} == {"sdpa"}


def test_programs_have_the_ops_of_the_published_table(family: Family) -> None:
    """All but a few, of which the card has to show whether its compiler takes them."""
    ops = import_module("torch_spyre.inductor").ops
    ops.clear()
    with start(family("llama")):
        assert (ops - TABLE, TABLE - ops) == (BEYOND, set())


TABLE = {
    "_to_copy", "_unsafe_view", "add", "bmm", "cat", "clone", "embedding", "expand", "index_select", "masked_fill",
    "mean", "mm", "mul", "pow", "rsqrt", "silu", "slice_scatter", "split", "split_with_sizes", "sub", "t", "transpose",
    "unsqueeze", "view",
}  # fmt: skip
"""In the published table under torch's names, casts and views among them."""
BEYOND = {"_safe_softmax", "alias", "copy", "copy_", "index_copy"}
"""Not in it, or not as compiled."""


def test_what_the_card_cannot_hold_is_refused(family: Family, tmp_path: Path) -> None:
    with pytest.raises(TesseraError, match="heads of 64 elements.*serve one whose heads are a multiple of 128"):
        start(save_family("llama", tmp_path, head_dim=64))
    with pytest.raises(TesseraError, match="bfloat16"):
        start(family("llama"), dtype="bfloat16")
