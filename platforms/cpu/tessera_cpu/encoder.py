"""Encoder attention with the native kernel, which reads queries, keys and values where the projection left them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Caches,
    Device,
    Launch,
    LayerSpec,
    Mixer,
)
from tessera_cpu import native
from tessera_cpu.products import rows_apart

LANES = 16  # heads have a multiple of this many elements
WIDEST = 256  # the largest head dimension


@dataclass(frozen=True)
class EncoderPlan:
    """launch: in the kernels' form; tensors: those it points into. padded: whether there are tokens between or after
    the rows."""

    launch: native.Launch
    tensors: tuple[Tensor, ...]
    padded: bool


class EncoderAttention(AttentionBackend):
    name = "native-encoder"

    def __init__(self, library: Any) -> None:
        self.library = library

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != "encoder_attention":
            return f"no encoder attention over {spec.kind}"
        if spec.sinks:
            return "no kernel for sinks"
        if spec.dtype not in native.ENTRIES:
            return f"no kernel for {spec.dtype}"
        if spec.head_dim % LANES or spec.head_dim > WIDEST:
            return f"heads of {spec.head_dim}, not a multiple of {LANES} up to {WIDEST}"
        norms = {(norm.eps, norm.offset) for norm in (spec.q_norm, spec.k_norm) if norm is not None}
        return "norms of queries and keys that differ" if len(norms) > 1 else None

    def batch_invariant(self, spec: LayerSpec) -> None:
        return None

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return EncoderMixer(spec, weights, self.library)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> EncoderPlan:
        tensors = launch.query_start_loc, launch.query_lens, launch.positions
        start, length, positions = (tensor.data_ptr() for tensor in tensors)
        described = native.Launch(
            start=start, length=length, positions=positions, rows=launch.num_rows, tokens=launch.key.tokens
        )
        return EncoderPlan(described, tensors, launch.key.tokens != launch.num_tokens)


class EncoderMixer(Mixer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        self.spec, self.weights, self.library = spec, weights, library
        norm = spec.q_norm or spec.k_norm
        self.layer = native.Layer(
            native.CacheBytes(kv_heads=spec.num_kv_heads, dim=spec.head_dim),
            heads=spec.num_heads,
            turned=0 if spec.rotary is None else spec.rotary.dim,
            window=spec.window or 0,
            eps=0.0 if norm is None else norm.eps,
            offset=0.0 if norm is None else norm.offset,
            scale=spec.scale,
            soft_cap=spec.softcap or 0.0,
            neighbours=spec.rotary is not None and spec.rotary.style == "pairs",
        )
        self.task = native.Encoding(reach=spec.relative_reach, number=native.ENTRIES[spec.dtype])

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: EncoderPlan) -> Tensor:
        spec, layer, task = self.spec, self.layer, self.task
        layer.cos_sin = self._address("cos_sin", spec.rotary)
        layer.q_weight, layer.k_weight = self._address("q_norm", spec.q_norm), self._address("k_norm", spec.k_norm)
        task.bias = self._address("relative_bias", spec.relative_reach)
        x = rows_apart(x)
        make = x.new_zeros if plan.padded else x.new_empty
        out = make(len(x), spec.num_heads * spec.head_dim)
        task.launch = ctypes.addressof(plan.launch)
        task.x, task.x_stride, task.out = x.data_ptr(), x.stride(0), out.data_ptr()
        self.library.tessera_cpu_encode(layer, task)
        return out

    def _address(self, name: str, there: Any) -> int | None:
        return self.weights[name].data_ptr() if there else None
