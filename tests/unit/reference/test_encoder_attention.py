"""Encoder attention against definitions that share no code with it: the kit's, and torch's
scaled_dot_product_attention, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.ops import REFERENCE
from tessera.platform.attention import NO_CACHE, AttentionGroup, LayerSpec
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.reference.encoder_attention import ReferenceEncoderAttention
from tessera.testing import TOLERANCES
from tessera.testing.encoder_attention import EncoderCase, EncoderTrial, encoder_cases
from tessera.testing.reference import host_device

ROWS = (1, 3, 17, 64, 130, 300)  # more than a tile of queries
HEADS, KV_HEADS, DIM = 6, 2, 20


def spec(dtype: str = "float32", **fields: Any) -> LayerSpec:
    return LayerSpec(0, "encoder_attention", HEADS, KV_HEADS, DIM, 0.3, dtype, None, **fields)


def launch_of(lengths: Sequence[int], padding: int = 0, gap: int = 0) -> Launch:
    """Rows with `gap` tokens between them, and `padding` rows at the end."""
    counts = np.array([*lengths, *[0] * padding], np.int32)
    starts = np.zeros(len(counts) + 1, np.int32)
    starts[1:] = np.cumsum(counts + gap * (counts > 0))
    tokens = int(starts[-1]) + padding
    tensors = {name: torch.from_numpy(values) for name, values in (("query_start_loc", starts), ("query_lens", counts))}
    none: Any = None
    return Launch(
        key=LaunchKey("mixed", len(counts), int(counts.max()), 1, tokens),
        num_rows=len(lengths), num_tokens=int(counts.sum()),
        rows=none, tokens=none, positions=torch.zeros(tokens, dtype=torch.int32),
        seq_lens=tensors["query_lens"], seq_lens_host=counts,
        query_start_loc_host=starts, query_lens_host=counts,
        slot_mapping=[], block_tables=[], logits_indices=none, **tensors,
    )  # fmt: skip


def mixed(layer_spec: LayerSpec, weights: dict[str, Tensor], launch: Launch, x: Tensor) -> Tensor:
    device = host_device()
    backend = ReferenceEncoderAttention()
    layer = backend.bind(layer_spec, weights, BoundOps(REFERENCE, device), device)
    plan = backend.plan(launch, AttentionGroup(layer_spec, (0,), NO_CACHE, "trial", device), None)
    return layer.fused(x, launch.positions, [], plan)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{name}-{dtype}")
        for dtype in ("float32", "bfloat16", "float16")
        for name, case in encoder_cases(dtype)
    ],
)
def test_encoder_attention_is_the_definition(case: EncoderCase) -> None:
    trial = EncoderTrial(ReferenceEncoderAttention(), case)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[case.dtype], atol=TOLERANCES[case.dtype])


@pytest.mark.parametrize(
    "fields", [{}, {"window": 1}, {"window": 9}, {"relative_reach": 7}, {"relative_reach": 400, "window": 30}], ids=str
)
@pytest.mark.parametrize(("padding", "gap"), [(0, 0), (3, 5)])
def test_a_row_is_what_torch_makes_of_it_alone(fields: dict[str, int], padding: int, gap: int) -> None:
    random = torch.Generator().manual_seed(3)
    reach = fields.get("relative_reach", 0)
    weights = {"relative_bias": torch.randn(HEADS, 2 * reach - 1, generator=random)} if reach else {}
    launch = launch_of(ROWS, padding, gap)
    x = torch.full((launch.key.tokens, (HEADS + 2 * KV_HEADS) * DIM), torch.nan)
    for start, count in zip(launch.query_start_loc_host.tolist(), ROWS, strict=False):
        x[start : start + count] = torch.randn(count, x.shape[1], generator=random)
    found = mixed(spec(**fields), weights, launch, x)
    for start, count in zip(launch.query_start_loc_host.tolist(), ROWS, strict=False):
        row = slice(start, start + count)
        q, k, v = x[row].unflatten(1, (-1, DIM)).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        distance = torch.arange(count)[None, :] - torch.arange(count)[:, None]
        mask = torch.zeros(HEADS, count, count)
        if reach:
            mask += weights["relative_bias"][:, distance.clamp(1 - reach, reach - 1) + reach - 1]
        if "window" in fields:
            mask.masked_fill_(distance.abs() >= fields["window"], -torch.inf)
        heads = (each.repeat_interleave(HEADS // each.shape[1], 1).transpose(0, 1) for each in (q, k, v))
        expected = F.scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.3).transpose(0, 1).flatten(1)
        torch.testing.assert_close(found[row], expected, rtol=2e-5, atol=2e-5)


def test_a_soft_cap_bounds_scores_before_the_bias_is_added() -> None:
    random = torch.Generator().manual_seed(4)
    x = torch.randn(5, (HEADS + 2 * KV_HEADS) * DIM, generator=random) * 4
    bias = torch.randn(HEADS, 9, generator=random)
    found = mixed(spec(softcap=0.7, relative_reach=5), {"relative_bias": bias}, launch_of((5,)), x)
    q, k, v = x.unflatten(1, (-1, DIM)).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    scores = torch.tanh(torch.einsum("qhd,khd->hqk", q, k) * 0.3 / 0.7) * 0.7
    scores = scores + torch.stack([bias[:, 4 - at : 9 - at] for at in range(5)], dim=1)
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_only_encoder_attention_is_taken() -> None:
    backend = ReferenceEncoderAttention()
    assert backend.supports(spec()) is None
    assert backend.supports(replace(spec(), sinks=True)) == "no sinks where tokens see their whole text"
    assert backend.supports(LayerSpec(0, "attention", 1, 1, 8, 1.0, "float32", None)) is not None
