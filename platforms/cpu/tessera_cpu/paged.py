"""Attention with the native kernels: directly on blocks, with the same kernel for decode and prefill, in bfloat16. Keys
and values are bfloat16 or int8."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AHEAD,
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
    HeadsLayer,
    KVLayout,
    Launch,
    LayerSpec,
    Plane,
)
from tessera_cpu import native
from tessera_cpu.products import rows_apart

TOKENS = 16  # keys are packed in groups of this many tokens
BLOCK = 32  # tokens: one head's keys fill a memory page, and processors prefetch within a page
WIDEST = 256  # the largest head dimension
KINDS = "attention", "alibi_attention", "relative_attention", "chunked_attention", "lookahead_attention"


@dataclass(frozen=True)
class PagedPlan:
    """launch: in the kernels' form; tensors: those it points into. padded: whether there are tokens between or after
    the rows."""

    launch: native.Launch
    tensors: tuple[Tensor, ...]
    block_size: int
    padded: bool

    @classmethod
    def of_launch(cls, launch: Launch, group: AttentionGroup) -> PagedPlan:
        tensors = (
            launch.block_tables[group.number], launch.query_start_loc, launch.query_lens, launch.seq_lens,
            launch.positions, launch.slot_mapping[group.number],
        )  # fmt: skip
        tensors = tuple(tensor.to(torch.int32) for tensor in tensors)
        ahead = launch.columns[AHEAD].data_ptr() if group.spec.kind == "lookahead_attention" else None
        described = native.Launch(
            *(tensor.data_ptr() for tensor in tensors), ahead, tensors[0].stride(0), launch.num_rows, launch.key.tokens
        )
        return cls(described, tensors, launch.block_sizes[group.number], launch.key.tokens != launch.num_tokens)


class PagedAttention(AttentionBackend):
    name = "native"

    def __init__(self, library: Any) -> None:
        self.library = library

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind not in KINDS or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        reason = why_not_kept(spec, spec.cache)
        if reason is not None:
            return reason
        norms = {(norm.eps, norm.offset) for norm in (spec.q_norm, spec.k_norm) if norm is not None}
        return "norms of queries and keys that differ" if len(norms) > 1 else None

    def batch_invariant(self, spec: LayerSpec) -> None:
        return None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(BLOCK, TOKENS), align_bytes=4)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, FullAttentionSpec)
        heads, dim = ("head", spec.num_kv_heads), spec.head_dim
        keys = (heads, ("token", block_size // TOKENS), ("dim", dim // 2), ("token", TOKENS), ("dim", 2))
        values = (heads, ("token", block_size // 2), ("dim", dim), ("token", 2))
        scales = heads, ("token", block_size)
        names = () if spec.quant is None else ("k_scale", "v_scale")
        planes = Plane("k", spec.dtype, keys), Plane("v", spec.dtype, values)
        return KVLayout((*(Plane(name, "float32", scales) for name in names), *planes))

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> AttentionLayer:
        return PagedLayer(spec, weights, ops, self.library)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return PagedPlan.of_launch(launch, group)


def why_not_kept(spec: LayerSpec, cache: FullAttentionSpec) -> str | None:
    """Why the kernels cannot keep the keys and values of a layer; None if they can."""
    kept = cache.dtype, cache.quant
    if spec.dtype != "bfloat16" or kept not in (("bfloat16", None), ("int8", KV_INT8)):
        return f"no kernels for {spec.dtype} with keys and values in {cache.dtype}"
    if spec.head_dim % TOKENS or spec.head_dim > WIDEST:
        return f"heads of {spec.head_dim}, not a multiple of {TOKENS} up to {WIDEST}"
    return None


class PagedLayer(HeadsLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, library: Any) -> None:
        super().__init__(spec, weights, ops)
        self.library, self.layer, self.in_order = library, native.Layer(), ops.batch_invariant
        self.standing: tuple[Tensor, ...] = ()  # the tensors that the layer's description points into
        has: dict[str, object] = {"cos_sin": spec.rotary, "q_norm": spec.q_norm, "k_norm": spec.k_norm}
        has |= {"sinks": spec.sinks or None, "relative_bias": spec.relative_reach or None}
        self.names = tuple(name for name, what in has.items() if what is not None)
        self.slopes = torch.tensor(spec.slopes, dtype=torch.float32)  # as the kernel reads them

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        layer = self._described(caches, plan)
        x, spec = rows_apart(x), self.spec
        q = x.new_empty(len(x), spec.num_heads, spec.head_dim)
        self.library.tessera_cpu_heads_input(
            layer, plan.launch, x.data_ptr(), x.stride(0), spec.num_heads, q.data_ptr()
        )  # fmt: skip
        return self._mixed(layer, q, plan).flatten(1)

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: PagedPlan) -> None:
        both = torch.cat((k.flatten(1), v.flatten(1)), dim=1)
        plain = self._bare(self._described(caches, plan))
        self.library.tessera_cpu_heads_input(plain, plan.launch, both.data_ptr(), both.stride(0), 0, None)

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        mixed = self._mixed(self._described(caches, plan), q.contiguous(), plan)
        return mixed if out is None else out.copy_(mixed)

    def _mixed(self, layer: native.Layer, q: Tensor, plan: PagedPlan) -> Tensor:
        out = torch.zeros_like(q) if plan.padded else torch.empty_like(q)
        self.library.tessera_cpu_attention(layer, plan.launch, q.data_ptr(), out.data_ptr())
        return out

    def _described(self, caches: Caches, plan: PagedPlan) -> native.Layer:
        planes = caches[self.spec.layer]
        standing = (*planes, *(self.weights[name] for name in self.names))
        if len(standing) == len(self.standing) and all(map(_same, standing, self.standing)):
            return self.layer
        self.standing, spec, norm = standing, self.spec, self.spec.q_norm or self.spec.k_norm
        *scales, keys, values = planes
        cache = native.CacheBytes(
            keys=keys.data_ptr(), values=values.data_ptr(), key_stride=keys.stride(0), value_stride=values.stride(0),
            block_size=plan.block_size, kv_heads=spec.num_kv_heads, dim=spec.head_dim,
        )  # fmt: skip
        if scales:
            cache.key_scales, cache.value_scales = (scale.data_ptr() for scale in scales)
            cache.key_scale_stride, cache.value_scale_stride = (scale.stride(0) for scale in scales)
        self.layer = native.Layer(
            cache,
            spec.num_heads,
            self._address("cos_sin"),
            0 if spec.rotary is None else spec.rotary.dim,
            self._address("q_norm"),
            self._address("k_norm"),
            spec.window or 0,
            0.0 if norm is None else norm.eps,
            0.0 if norm is None else norm.offset,
            spec.scale,
            spec.softcap or 0.0,
            spec.rotary is not None and spec.rotary.style == "pairs",
            self.in_order,
            spec.chunk or 0,
            self.slopes.data_ptr() if spec.slopes else None,
            self._address("sinks"),
            self._address("relative_bias"),
            spec.relative_reach,
        )
        return self.layer

    def _bare(self, layer: native.Layer) -> native.Layer:
        """A copy of the layer without norms and rotary embedding, for keys that are already final."""
        bare = native.Layer()
        ctypes.pointer(bare)[0] = layer
        bare.cos_sin = bare.q_weight = bare.k_weight = None
        return bare

    def _address(self, name: str) -> int | None:
        return self.weights[name].data_ptr() if name in self.names else None


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or first.data_ptr() == second.data_ptr()
