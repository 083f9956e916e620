"""Attention over the paged cache in plain JAX, which the kernels are compared with, against core's reference."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tessera.platform import KV_INT8, FullAttentionSpec, LayerSpec
from tessera.reference.attention import PagedPlan, ReferenceAttentionLayer, RowGrid
from tessera_tpu.arrays import host_array
from tessera_tpu.paged import Plain
from tessera_tpu.plan import AttentionPlan, Rows, Tiles

HEADS, OF_HEADS, DIM, SIZE = 6, 2, 12, 8
ROWS = ((0, 13), (37, 1), (16, 8), (5, 3), (40, 9))
"""Of each row: tokens in the cache, and tokens to compute."""


def tensors(dtype: str, scaled: bool) -> dict[str, Any]:
    """Planes [blocks, token, head, dim], NaN where nobody wrote, and q, k, v of the tokens. scaled: the planes are
    int8, and those of scales [blocks, token, head] come first."""
    rng, kind = np.random.default_rng(3), getattr(torch, dtype)
    tables = rng.permutation(np.arange(1, 36)).reshape(5, 7)
    planes = [torch.full((36, SIZE, OF_HEADS, DIM), torch.nan) for _ in range(2)]
    for row, (before, _) in enumerate(ROWS):
        for position in range(before):
            for plane in planes:
                plane[tables[row, position // SIZE], position % SIZE] = torch.tensor(rng.normal(size=(OF_HEADS, DIM)))
    if scaled:
        scales = [plane.abs().amax(-1) / 127 for plane in planes]
        data = [(plane / scale[..., None]).round().nan_to_num(0) for plane, scale in zip(planes, scales, strict=True)]
        planes = [*scales, *(plane.to(torch.int8) for plane in data)]
    tokens = sum(count for _, count in ROWS)
    q, k, v = (torch.tensor(rng.normal(size=(tokens, n, DIM))).to(kind) for n in (HEADS, OF_HEADS, OF_HEADS))
    return {
        "tables": tables,
        "planes": planes if scaled else [plane.to(kind) for plane in planes],
        "q": q,
        "k": k,
        "v": v,
    }


def by_core(given: dict[str, Any], spec: LayerSpec) -> Any:
    counts, firsts = (torch.tensor([row[place] for row in ROWS]) for place in (1, 0))
    starts, tables = torch.cumsum(counts, 0) - counts, torch.from_numpy(given["tables"])
    width, row = int(counts.max()), torch.repeat_interleave(torch.arange(len(ROWS)), counts)
    place = torch.arange(width)
    valid = place < counts[:, None]
    within = torch.arange(len(row)) - starts[row]
    position = firsts[row] + within
    grid = RowGrid(torch.where(valid, starts[:, None] + place, 0), valid, row, within)
    query, key = firsts[:, None, None] + place[None, :, None], torch.arange(tables.shape[1] * SIZE)[None, None]
    filled = key < (firsts + counts)[:, None, None]
    plan = PagedPlan(
        grid, tables[row, position // SIZE], position % SIZE, tables, query, last=query, key=key, filled=filled
    )
    layer, caches = ReferenceAttentionLayer(spec, {}, None), [[plane.clone() for plane in given["planes"]]]
    layer.write(given["k"], given["v"], caches, plan)
    return layer.attend(given["q"], caches, plan)


def by_jax(given: dict[str, Any], spec: LayerSpec) -> Any:
    counts, firsts = (np.array([row[place] for row in ROWS], np.int32) for place in (1, 0))
    starts, row = np.cumsum(counts) - counts, np.repeat(np.arange(len(ROWS)), counts)
    positions = firsts[row] + np.arange(len(row)) - starts[row]
    rows = Rows(*(jnp.asarray(one, jnp.int32) for one in (row, positions, starts, counts, firsts)))
    tables = jnp.asarray(np.pad(given["tables"], ((0, 1), (0, 0))), jnp.int32)
    width = int(counts.max())
    plan = AttentionPlan(rows, Tiles.from_rows(rows, width, 4), tables, width)
    q, k, v = (jnp.asarray(one.float().numpy(), spec.dtype) for one in (given["q"], given["k"], given["v"]))
    planes = tuple(jnp.swapaxes(jnp.asarray(host_array(plane)), 1, 2) for plane in given["planes"])
    kept = Plain().write(planes, k, v, plan)
    grouped = q[jnp.minimum(plan.tiles.token, len(q) - 1)]
    mixed = Plain().attend(grouped, kept, plan, scale=spec.scale, window=spec.window, softcap=spec.softcap)
    return np.asarray(mixed.reshape(-1, HEADS, DIM)[plan.tiles.place], np.float32)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 3.0}, {"window": 19, "softcap": 3.0}])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "int8"])
def test_it_computes_what_the_reference_does(dtype: str, tolerance: float, options: dict, scaled: bool) -> None:
    cache = FullAttentionSpec(OF_HEADS, DIM, "int8", KV_INT8) if scaled else FullAttentionSpec(OF_HEADS, DIM, dtype)
    spec = LayerSpec(0, "attention", HEADS, OF_HEADS, DIM, 0.3, dtype, cache, **options)
    given = tensors(dtype, scaled)
    found, expected = by_jax(given, spec), by_core(given, spec).float().numpy()
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)
