"""Attention over blocks against its definition, and against what a cache may hold besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.platform import AttentionBackend, AttentionLayer, BoundOps, NormSpec, RotarySpec
from tessera.testing import REFERENCE, TOLERANCES, AttentionCase, AttentionTrial, ReferenceAttention, attention_cases
from tessera_cpu.attention import SdpaAttention, SdpaLayer
from tessera_cpu.platform import CpuPlatform

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
    assert SdpaAttention().supports(replace(spec, kind="linear")) == "no attention over linear"


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dim", "style"), [(12, "half"), (8, "half"), (12, "pairs"), (None, "")])
def test_the_fused_input_is_its_parts(dim: int | None, style: str, normed: bool) -> None:
    """Split, norm, turn, write and attend, one by one over the reference's ops."""
    case = AttentionCase(((1, 20), (7, 30)), head_dim=12)
    norm = NormSpec(12, "float32", 1e-6) if normed else None
    rotary = None if dim is None else RotarySpec(12, dim, style)
    spec = replace(case.spec(), rotary=rotary, q_norm=norm, k_norm=norm)
    random = torch.Generator().manual_seed(1)
    table = torch.outer(torch.arange(40.0), 10.0 ** -torch.linspace(0, 1, (dim or 12) // 2))
    weights = {"cos_sin": torch.cat((table.cos(), table.sin()), dim=-1)}
    weights |= {name: torch.rand(12, generator=random) for name in ("q_norm", "k_norm")}
    x = torch.randn(8, (6 + 2 * 2) * 12, generator=random)
    positions = torch.tensor([19, *range(23, 30)], dtype=torch.int32)
    results = []
    for fused in (SdpaLayer.fused, AttentionLayer.fused):
        trial = AttentionTrial(SdpaAttention(), case)
        trial.run()
        trial.layer = SdpaLayer(spec, weights, BoundOps(REFERENCE, CpuPlatform().open(0)))
        launch, _ = trial.launch([(1, 20, 0), (7, 30, 1)])
        results.append(fused(trial.layer, x.clone(), positions, trial.caches, launch.plans[0]))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
