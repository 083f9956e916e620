"""Latent attention with the native kernels, in bfloat16 and float32: rows of few tokens, as in decode, over the latents
themselves, which all heads read together; rows of many over keys and values that are computed from them. With a
selection of tokens, only their latents are read."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tessera.platform import (
    AttentionGroup,
    BoundOps,
    Buffers,
    CacheConstraints,
    Caches,
    Device,
    LatentBackend,
    LatentHeadsSpec,
    LatentInput,
    LatentLayer,
    LatentLayerSpec,
    Launch,
    Reason,
    SparseLatentBackend,
    SparseLatentInput,
    SparseLatentLayer,
    SparseLatentLayerSpec,
)
from tessera_cpu import native
from tessera_cpu.paged import PagedPlan
from tessera_cpu.products import rows_apart

WIDEST_LATENT, WIDEST_HEAD = 640, 256
"""The largest latents, and queries and values of a head, as in csrc/kernels.h."""


class LatentAttention(LatentBackend):
    name = "native-latent"

    def __init__(self, library: Any) -> None:
        self.library = library

    def supports(self, spec: LatentLayerSpec) -> Reason | None:
        return why_not(spec)

    def constraints(self, spec: LatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1), align_bytes=4)

    def bind(
        self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> NativeLatentLayer:
        return NativeLatentLayer(spec, weights, ops, self.library)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return PagedPlan.of_launch(launch, group)


class SparseLatentAttention(SparseLatentBackend):
    name = "native-sparse-latent"

    def __init__(self, library: Any) -> None:
        self.library = library

    def supports(self, spec: SparseLatentLayerSpec) -> Reason | None:
        return why_not(spec)

    def constraints(self, spec: SparseLatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1), align_bytes=4)

    def bind(
        self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> NativeSparseLatentLayer:
        return NativeSparseLatentLayer(spec, weights, ops, self.library)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return PagedPlan.of_launch(launch, group)


def why_not(spec: LatentHeadsSpec) -> Reason | None:
    """Why the kernels cannot run a layer."""
    if spec.dtype not in native.ENTRIES or spec.cache.dtype != spec.dtype:
        return f"no kernel for {spec.dtype} with latents in {spec.cache.dtype}"
    if (latent := spec.cache.rank + spec.cache.rope_dim) > WIDEST_LATENT:
        return f"latents of {latent}, more than {WIDEST_LATENT}"
    if (head := max(spec.query_dim, spec.value_dim)) > WIDEST_HEAD:
        return f"heads of {head}, larger than {WIDEST_HEAD}"
    return None


class Latents:
    """The native calls of a layer."""

    def __init__(self, spec: LatentHeadsSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        self.spec, self.weights, self.library = spec, weights, library
        self.layer, self.input, self.attention = native.LatentLayer(), native.LatentInput(), native.LatentAttention()
        self.standing: tuple[int, ...] = ()  # the addresses that the layer's description has
        self.up: Tensor | None = None  # that it points into

    def put(self, q: Tensor | None, latent: Tensor, caches: Caches, plan: PagedPlan) -> None:
        """Norms and turns latents [T, rank + rope_dim] and stores them, and turns q [T, H (nope_dim + rope_dim)] in
        place; without q, only stores them."""
        layer, task, latent = self._described(caches, plan), self.input, rows_apart(latent)
        if q is None:
            plain = native.LatentLayer()
            ctypes.pointer(plain)[0] = layer
            plain.norm = plain.cos_sin = None
            layer = plain
        task.q, task.q_stride = (None, 0) if q is None else (q.data_ptr(), q.stride(0))
        task.launch, task.latent = ctypes.addressof(plan.launch), latent.data_ptr()
        task.latent_stride = latent.stride(0)
        self.library.tessera_cpu_latent_input(layer, task)

    def over(self, q: Tensor, caches: Caches, plan: PagedPlan, selection: Tensor | None = None) -> Tensor:
        """q [T, H (nope_dim + rope_dim)] -> [T, H value_dim]"""
        layer, task, spec = self._described(caches, plan), self.attention, self.spec
        make = q.new_zeros if plan.padded else q.new_empty
        out = make(len(q), spec.num_heads * spec.value_dim)
        task.launch, task.q, task.q_stride = ctypes.addressof(plan.launch), q.data_ptr(), q.stride(0)
        task.out = out.data_ptr()
        selection = None if selection is None else selection.contiguous()
        task.selection, task.limit = (None, 0) if selection is None else (selection.data_ptr(), selection.shape[1])
        self.library.tessera_cpu_latent_attention(layer, task)
        return out

    def _described(self, caches: Caches, plan: PagedPlan) -> native.LatentLayer:
        (plane,), spec, weights = caches[self.spec.layer], self.spec, self.weights
        cos_sin = None if spec.rotary is None else weights["cos_sin"]
        parts = plane, weights["kv_up"], weights["latent_norm"], *(() if cos_sin is None else (cos_sin,))
        standing = tuple(part.data_ptr() for part in parts)
        if standing == self.standing:
            return self.layer
        self.standing, self.up = standing, weights["kv_up"].contiguous()
        self.layer = native.LatentLayer(
            latents=plane.data_ptr(),
            block_stride=plane.stride(0),
            block_size=plan.block_size,
            rank=spec.cache.rank,
            rope=spec.cache.rope_dim,
            heads=spec.num_heads,
            nope=spec.nope_dim,
            value=spec.value_dim,
            up=self.up.data_ptr(),
            norm=weights["latent_norm"].data_ptr(),
            cos_sin=None if cos_sin is None else cos_sin.data_ptr(),
            turned=0 if spec.rotary is None else spec.rotary.dim,
            eps=spec.latent_norm.eps,
            offset=spec.latent_norm.offset,
            scale=spec.scale,
            neighbours=spec.rotary is not None and spec.rotary.style == "pairs",
            number=native.ENTRIES[spec.dtype],
        )
        return self.layer


class NativeLatentLayer(LatentLayer):
    def __init__(self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, library: Any) -> None:
        super().__init__(spec, weights, ops)
        self.latents = Latents(spec, weights, library)

    def fused(self, x: LatentInput, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        q = rows_apart(x.queries)
        self.latents.put(q, x.latent, caches, plan)
        return self.latents.over(q, caches, plan)

    def write(self, latent: Tensor, caches: Caches, plan: PagedPlan) -> None:
        self.latents.put(None, latent, caches, plan)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None) -> Tensor:
        mixed = self.latents.over(q.flatten(1), caches, plan).unflatten(1, (self.spec.num_heads, -1))
        return mixed if out is None else out.copy_(mixed)


class NativeSparseLatentLayer(SparseLatentLayer):
    def __init__(self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, library: Any) -> None:
        super().__init__(spec, weights, ops)
        self.latents = Latents(spec, weights, library)

    def fused(self, x: SparseLatentInput, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        q = rows_apart(x.projected.queries)
        self.latents.put(q, x.projected.latent, caches, plan)
        return self.latents.over(q, caches, plan, x.selection)

    def write(self, latent: Tensor, caches: Caches, plan: PagedPlan) -> None:
        self.latents.put(None, latent, caches, plan)

    def attend(
        self, q: Tensor, selection: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None
    ) -> Tensor:
        mixed = self.latents.over(q.flatten(1), caches, plan, selection).unflatten(1, (self.spec.num_heads, -1))
        return mixed if out is None else out.copy_(mixed)
