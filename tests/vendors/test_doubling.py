"""The number of shapes grows with the logarithm of what is served."""

from __future__ import annotations

import pytest

from tests.platforms.emulated import Family
from tests.vendors.chosen import start

pytestmark = pytest.mark.compiler


def test_shapes_grow_with_the_logarithm_of_what_is_served(family: Family) -> None:
    with start(family("llama"), block_size=16, max_num_seqs=64, max_num_batched_tokens=256, enforce_eager=True) as run:
        keys = run.executor.runner.shapes.keys()
        assert len(keys) == (7 + 2) * 3
        assert {key.rows for key in keys if key.kind == "decode"} == {1, 2, 4, 8, 16, 32, 64}
        assert {key.width for key in keys if key.kind == "prefill"} == {128, 256}
        assert {key.blocks for key in keys} == {4, 8, 16}
