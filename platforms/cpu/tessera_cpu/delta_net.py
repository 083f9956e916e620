"""The gated delta net with the native kernels: the convolution, the delta rule and the gated norm, for rows of any
length."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer
from tessera_cpu import native
from tessera_cpu.products import rows_apart
from tessera_cpu.state import NativeMixer, NativeState, StatePlan


class GatedDeltaNet(NativeState):
    name, kind = "native-delta-net", "gated_delta_net"

    def supports(self, spec: LayerSpec) -> str | None:
        reason = super().supports(spec)
        if reason is not None:
            return reason
        widest = max(spec.head_dim, int(dict(spec.options)["key_dim"]))
        return f"heads of {widest}, more than {native.WIDEST}" if widest > native.WIDEST else None

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return GatedDeltaNetMixer(spec, weights, self.library)


class GatedDeltaNetMixer(NativeMixer):
    """x [T, 2 Hk Dk + 2 Hv Dv + 2 Hv]: queries, keys, values, gates, b and a."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        super().__init__(spec, weights, library)
        key_dim, number = int(self.options["key_dim"]), self.number
        self.keys, self.values = spec.num_kv_heads * key_dim, spec.num_heads * spec.head_dim
        self.channels = 2 * self.keys + self.values
        self.convolution = native.Convolution(channels=self.channels, kernel=int(self.options["kernel"]), number=number)
        self.rule = native.DeltaRule(
            heads=spec.num_heads, key_heads=spec.num_kv_heads, key_dim=key_dim, dim=spec.head_dim,
            scale=spec.scale, beta_scale=self.options["beta_scale"], number=number,
        )  # fmt: skip
        self.norm = native.GatedNorm(
            x_stride=self.channels, groups=spec.num_heads, size=spec.head_dim, eps=self.options["eps"], number=number
        )

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x, (conv, states) = rows_apart(x), caches[self.spec.layer]
        mixed = (x.new_zeros if plan.padded else x.new_empty)(len(x), self.channels, dtype=torch.float32)
        self._convolved(self.convolution, x, conv, plan, mixed)
        start, step, rule, norm = x.data_ptr(), x.element_size(), self.rule, self.norm
        rule.launch, rule.mixed, rule.stride = ctypes.addressof(plan.launch), mixed.data_ptr(), x.stride(0)
        rule.b = start + step * (self.channels + self.values)
        rule.a = rule.b + step * self.spec.num_heads
        rule.state, rule.slot_stride = states.data_ptr(), states.stride(0)
        rule.a_log, rule.dt_bias = self._address("a_log"), self._address("dt_bias")
        self.library.tessera_cpu_delta_rule(rule)
        out = x.new_empty(len(x), self.values)
        norm.x, norm.gate, norm.gate_stride = (
            mixed[:, 2 * self.keys :].data_ptr(),
            start + step * self.channels,
            x.stride(0),
        )
        norm.weight, norm.out, norm.tokens = self._address("norm"), out.data_ptr(), len(x)
        self.library.tessera_cpu_gated_norm(norm)
        return out
