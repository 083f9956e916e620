"""Attention over blocks against its definition, and against what a cache may hold besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.platform import AttentionBackend
from tessera.testing import TOLERANCES, AttentionCase, AttentionTrial, ReferenceAttention, attention_cases
from tessera_cpu.attention import SdpaAttention

CASES = [pytest.param(case, id=str(number)) for number, case in enumerate(attention_cases())]


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition(case: AttentionCase, index_dtype: str) -> None:
    trial = AttentionTrial(SdpaAttention(), case, index_dtype=index_dtype)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        tolerance = TOLERANCES[case.dtype]
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: AttentionCase) -> None:
    def run(backend: AttentionBackend) -> torch.Tensor:
        return torch.cat(AttentionTrial(backend, case).run())

    tolerance = TOLERANCES[case.dtype]
    torch.testing.assert_close(run(SdpaAttention()), run(ReferenceAttention()), rtol=tolerance, atol=tolerance)


def test_what_it_cannot_do_it_refuses() -> None:
    spec = AttentionCase(((1, 1),), window=4, softcap=30.0).spec()
    assert SdpaAttention().supports(spec) is None
    assert SdpaAttention().supports(replace(spec, kind="linear_attention")) == "no attention over linear_attention"
