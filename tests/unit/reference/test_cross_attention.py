"""Cross attention against the kit's definition, which shares no code with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.reference.cross_attention import ReferenceCrossAttention
from tessera.testing import TOLERANCES
from tessera.testing.cross_attention import CrossCase, CrossTrial, cross_cases


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{name}-{size}-{dtype}")
        for dtype, size in (("float32", 16), ("float32", 1), ("bfloat16", 16))
        for name, case in cross_cases(size, dtype)
    ],
)
def test_cross_attention_is_the_definition(case: CrossCase) -> None:
    trial = CrossTrial(ReferenceCrossAttention(), case)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[case.dtype], atol=TOLERANCES[case.dtype])


def test_only_cross_attention_is_taken() -> None:
    backend, spec = ReferenceCrossAttention(), CrossCase(((1, 1),)).spec()
    assert backend.supports(spec) is None
    assert backend.supports(replace(spec, kind="ranged_cross_attention")) is None
    assert backend.supports(replace(spec, kind="attention")) == "no cross attention over attention"
    assert backend.supports(replace(spec, dtype="bfloat16")) == "keys and values are kept in bfloat16"
