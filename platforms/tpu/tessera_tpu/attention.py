"""Attention over the paged cache: heads, rotary embedding, the cache's update and the attention itself, all in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from tessera.platform import (
    KV_INT8,
    AttentionBackend,
    AttentionGroup,
    AttentionLayer,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    CacheSpec,
    Device,
    FullAttentionSpec,
    KVLayout,
    Launch,
    LayerSpec,
    Mixer,
    Plane,
    Reason,
    RotarySpec,
    Tensor,
)
from tessera_tpu.arrays import as_jax, as_torch
from tessera_tpu.paged import Kernels
from tessera_tpu.plan import AttentionPlan

BLOCK, SCALED_BLOCK = 32, 128
"""Tokens of a block, and multiples: a tile of the device's memory has as many rows of int8, and as many scales of
tokens side by side."""


def block_of(spec: CacheSpec) -> int:
    assert isinstance(spec, FullAttentionSpec)
    return BLOCK if spec.quant is None else SCALED_BLOCK


class PagedAttention(AttentionBackend):
    """kernels: what writes and attends. tables: cosines and sines, which layers share, by a name of their own. They are
    arguments of a program, as weights are: within it they would be copied into each."""

    name = "paged"

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.tables: dict[str, Tensor] = {}

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks:
            return "no kernel for sinks"
        if spec.cache.quant is None and spec.cache.dtype == spec.dtype:
            return None
        return None if spec.cache.quant == KV_INT8 else f"keys and values are kept in {spec.dtype} or int8 alone"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        assert spec.cache is not None
        return CacheConstraints((block_of(spec.cache),), dense_planes=True)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, FullAttentionSpec)
        rows = ("head", spec.num_kv_heads), ("token", block_size)
        scales = (Plane(f"{name}_scale", KV_INT8.scale_dtype, rows) for name in "kv" if spec.quant == KV_INT8)
        axes = *rows, ("dim", self.kernels.dim(spec.head_dim))
        return KVLayout((*scales, Plane("k", spec.dtype, axes), Plane("v", spec.dtype, axes)))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        table = ""
        if spec.rotary is not None:
            found = [name for name, known in self.tables.items() if known is weights["cos_sin"]]
            table = found[0] if found else f"cos_sin{len(self.tables)}"
            self.tables[table] = weights["cos_sin"]
        return Layer(spec, weights, ops, self.kernels, self.tables, table)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        raise AssertionError("the runner plans")


class Layer(AttentionLayer):
    """kernels, tables, table: the backend's, and the name of the layer's own."""

    def __init__(
        self,
        spec: LayerSpec,
        weights: Mapping[str, Tensor],
        ops: BoundOps,
        kernels: Kernels,
        tables: Mapping[str, Tensor],
        table: str,
    ) -> None:
        self.spec, self.weights, self.kernels, self.tables, self.table = spec, weights, kernels, tables, table
        self.q_norm = ops.bind("rms_norm", spec.q_norm) if spec.q_norm is not None else None
        self.k_norm = ops.bind("rms_norm", spec.k_norm) if spec.k_norm is not None else None

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: AttentionPlan) -> None:
        planes = tuple(caches[self.spec.layer])
        new_k, new_v = (self._padded(as_jax(each), planes[-1]) for each in (k, v))
        caches[self.spec.layer] = self.kernels.write(planes, new_k, new_v, plan)

    def attend(
        self, q: Tensor, caches: Caches, plan: AttentionPlan, out: Tensor | None = None, lse: bool = False
    ) -> Tensor:
        assert not lse, "constraints() do not offer it"
        spec, tiles = self.spec, plan.tiles
        planes = tuple(caches[spec.layer])
        queries = self._padded(as_jax(q), planes[-1])
        grouped = queries[jnp.minimum(tiles.token, len(queries) - 1)]  # [N, Q, H, D]
        mixed = self.kernels.attend(grouped, planes, plan, scale=spec.scale, window=spec.window, softcap=spec.softcap)
        result = as_torch(mixed[..., : spec.head_dim].reshape(-1, spec.num_heads, spec.head_dim)[tiles.place])
        return result if out is None else out.copy_(result)

    def _padded(self, x: Any, plane: Any) -> Any:
        """x [T, heads, D] with as many elements in a head as the planes have."""
        return jnp.pad(x, ((0, 0), (0, 0), (0, plane.shape[-1] - self.spec.head_dim)))

    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        wide = as_jax(x).reshape(len(x), heads + 2 * kv_heads, spec.head_dim)
        q, k, v = wide[:, :heads], wide[:, heads : heads + kv_heads], wide[:, heads + kv_heads :]
        if self.q_norm is not None:
            q = as_jax(self.q_norm(as_torch(q), self.weights["q_norm"]))
        if self.k_norm is not None:
            k = as_jax(self.k_norm(as_torch(k), self.weights["k_norm"]))
        if spec.rotary is not None:
            cos_sin = as_jax(self.tables[self.table])[as_jax(positions)]
            q, k = (turned(spec.rotary, each, cos_sin) for each in (q, k))
        return as_torch(q), as_torch(k), as_torch(v)


def turned(spec: RotarySpec, x: Any, cos_sin: Any) -> Any:
    """x [T, H, D], cos_sin [T, dim] float32 -> x with the first dim elements of each head rotated."""
    cos, sin = jnp.split(cos_sin[:, None], 2, axis=-1)
    wide = x[..., : spec.dim].astype(jnp.float32)
    if spec.style == "half":
        a, b = jnp.split(wide, 2, axis=-1)
        result = jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
    else:
        a, b = wide[..., 0::2], wide[..., 1::2]
        result = jnp.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(wide.shape)
    return jnp.concatenate((result.astype(x.dtype), x[..., spec.dim :]), axis=-1)
