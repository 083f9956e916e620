"""Keys and values in blocks: what the kernels compute, in plain JAX.

The planes of a layer are its keys and its values, [blocks, Hk, tokens, D]. In int8, tokens have a scale for each head;
the planes of these, [blocks, Hk, tokens] float32, come first.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array as Jax

from tessera_tpu.plan import AttentionPlan

Planes = tuple[Jax, ...]


class Kernels(Protocol):
    """What writes keys and values, and attends to them."""

    def dim(self, head_dim: int) -> int:
        """Elements of a head in the planes, at least its own; the others are 0."""

    def write(self, planes: Planes, k: Jax, v: Jax, plan: AttentionPlan) -> Planes:
        """k, v [T, Hk, D] -> the planes, with them at the positions of their tokens."""

    def attend(
        self, q: Jax, planes: Planes, plan: AttentionPlan, *, scale: float, window: int | None,
        softcap: float | None,
    ) -> Jax:  # fmt: skip
        """q [N, Q, H, D], in the tiles of the plan -> the same shape."""


class Plain:
    """What XLA makes of write() and attend()."""

    def dim(self, head_dim: int) -> int:
        return head_dim

    def write(self, planes: Planes, k: Jax, v: Jax, plan: AttentionPlan) -> Planes:
        return write(planes, k, v, plan)

    def attend(
        self, q: Jax, planes: Planes, plan: AttentionPlan, *, scale: float, window: int | None,
        softcap: float | None,
    ) -> Jax:  # fmt: skip
        tiles = plan.tiles
        seen = plan.tables[tiles.row]
        return attend(q, planes, seen, tiles.first, tiles.count, scale=scale, window=window, softcap=softcap)


LEAST = -0.7 * float(jnp.finfo(jnp.float32).max)
"""Instead of minus infinity, whose differences are no numbers."""


def rounded(x: Jax) -> tuple[Jax, Jax]:
    """x [..., D] -> int8 of the same shape, and a scale [...] float32 for each row, as core's op quantize rounds."""
    wide = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(wide).max(-1), 1e-12) / 127
    return jnp.clip(jnp.round(wide / scale[..., None]), -128, 127).astype(jnp.int8), scale


def stored(planes: Planes, k: Jax, v: Jax) -> Planes:
    """k, v [T, Hk, D] as the planes have them: [T, Hk, D], or [T, Hk] for scales."""
    if len(planes) == 2:
        return k.astype(planes[0].dtype), v.astype(planes[1].dtype)
    (keys, of_keys), (values, of_values) = rounded(k), rounded(v)
    return of_keys, of_values, keys, values


def write(planes: Planes, k: Jax, v: Jax, plan: AttentionPlan) -> Planes:
    """k, v [T, Hk, D] at the positions of their tokens."""
    size, rows = planes[0].shape[2], plan.rows
    block, offset = plan.tables[rows.row, rows.positions // size], rows.positions % size
    new = stored(planes, k, v)
    return tuple(plane.at[block, :, offset].set(values) for plane, values in zip(planes, new, strict=True))


def attend(
    q: Jax,
    planes: Planes,
    tables: Jax,
    first: Jax,
    count: Jax,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Jax:
    """q [N, Q, H, D]: Q queries of each tile, of which the first count [N] are there, at the positions from first [N]
    on. tables [N, blocks]: of the tile's row. -> [N, Q, H, D]. What nobody wrote may be NaN, and reaches no result."""
    tiles, places, heads, dim = q.shape
    of_heads = planes[0].shape[1]
    *scales, keys, values = (  # [N, Hk, K], [N, Hk, K, D]
        jnp.moveaxis(plane[tables], 2, 1).reshape(tiles, of_heads, -1, *plane.shape[3:]).astype(jnp.float32)
        for plane in planes
    )
    if scales:
        keys, values = (x * scale[..., None] for x, scale in zip((keys, values), scales, strict=True))
    query = first[:, None] + jnp.arange(places)  # [N, Q]
    key = jnp.arange(keys.shape[2])
    seen = (key <= query[..., None]) & (jnp.arange(places) < count[:, None])[..., None]  # [N, Q, K]
    if window is not None:
        seen &= key > query[..., None] - window
    there = seen.any(1)[:, None, :, None]
    keys, values = (jnp.where(there, x, 0.0) for x in (keys, values))
    grouped = q.astype(jnp.float32).reshape(tiles, places, of_heads, heads // of_heads, dim)
    exact = jax.lax.Precision.HIGHEST
    scores = jnp.einsum("nqhgd,nhkd->nhgqk", grouped, keys, precision=exact) * scale
    if softcap is not None:
        scores = jnp.tanh(scores / softcap) * softcap
    scores = jnp.where(seen[:, None, None], scores, LEAST)
    weights = jnp.where(seen[:, None, None], jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
    mixed = jnp.einsum("nhgqk,nhkd->nqhgd", weights / total, values, precision=exact)
    return mixed.reshape(q.shape).astype(q.dtype)
