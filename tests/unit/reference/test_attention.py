"""Attention over blocks against definitions that share no code with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.reference.attention import ReferenceAttention, read
from tessera.testing import TOLERANCES, AttentionCase, AttentionTrial, attention_cases
from tessera.testing.attention import alibi_cases, chunked_cases, lookahead_cases, relative_cases

KINDS = attention_cases, alibi_cases, chunked_cases, lookahead_cases, relative_cases
CASES = [
    pytest.param(case, id=f"{name}-{size}-{dtype}")
    for size, dtype in ((16, "float32"), (24, "float32"), (1, "bfloat16"))
    for cases in KINDS
    for name, case in cases(size, dtype)
] + [
    pytest.param(replace(case, kv_dtype=kept), id=f"{name}-over-{kept}-{dtype}")
    for kept in ("int8", "fp8")
    for dtype in ("float32", "bfloat16")
    for cases in KINDS
    for name, case in cases(16, dtype)
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_attention_is_the_definition(case: AttentionCase) -> None:
    trial = AttentionTrial(ReferenceAttention(), case)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[case.dtype], atol=TOLERANCES[case.dtype])


def test_int8_of_keys_and_values_is_off_by_half_a_step_of_their_head() -> None:
    trial = AttentionTrial(ReferenceAttention(), AttentionCase(((40, 40),), 16, 4, 2, 24, kv_dtype="int8"))
    trial.run()
    for given, kept in zip(
        (trial.keys[0], trial.values[0]), read(trial.caches[0], torch.tensor(trial.tables)), strict=True
    ):
        step = given.abs().amax(-1, keepdim=True) / 127
        assert ((kept[0, :40] - given).abs() <= 0.5001 * step).all()
        assert (kept[0, :40] != given).any()


def test_fp8_of_keys_and_values_saturates_and_keeps_its_scale_apart() -> None:
    trial = AttentionTrial(ReferenceAttention(), AttentionCase(((40, 40),), 16, 4, 2, 24, kv_dtype="fp8"))
    trial.keys[0][3, 1, :3] = torch.tensor([1e6, -torch.inf, 0.0])
    trial.run()
    assert [plane.dtype for plane in trial.caches[0]] == [torch.float8_e4m3fn] * 2
    weights = [trial.weights["k_scale"], trial.weights["v_scale"]]
    found = read(trial.caches[0], torch.tensor(trial.tables), weights)
    for given, kept, most in zip((trial.keys[0], trial.values[0]), found, (2.0, 1.5), strict=True):
        inside = given.abs() <= most
        assert 0.8 < inside.float().mean() < 0.98
        assert ((kept[0, :40] - given).abs() <= given.abs() / 15 + 1e-4)[inside].all()
        assert torch.allclose(kept[0, :40][~inside], given.sign()[~inside] * most)
    assert sum(plane.numel() * plane.element_size() for plane in trial.caches[0]) == trial.num_blocks * 2 * 16 * 2 * 24


def test_attention_gives_the_log_of_its_sum_of_exponents() -> None:
    case = AttentionCase(((1, 30), (4, 20)))
    trial = AttentionTrial(ReferenceAttention(), case)
    trial.run()
    launch, starts = trial.launch([(1, 30, 0), (4, 20, 1)])
    q = trial.laid(launch, starts, trial.queries)
    _, sums = trial.layer.attend(q, trial.caches, launch.plans[0], lse=True)
    for i in range(4):
        scores = (
            torch.einsum("hd,khd->hk", trial.queries[1][i], trial.keys[1][: 17 + i].repeat_interleave(3, 1)) * 12**-0.5
        )
        assert torch.allclose(sums[1 + i], torch.logsumexp(scores, -1), atol=1e-5)
