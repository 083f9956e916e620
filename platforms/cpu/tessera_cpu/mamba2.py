"""Mamba 2 with the native kernels: the convolution, the recurrence and the gated norm, for rows of any length."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer
from tessera_cpu import native
from tessera_cpu.products import rows_apart
from tessera_cpu.state import NativeMixer, NativeState, StatePlan


class Mamba2(NativeState):
    name, kind = "native-mamba2", "mamba2"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return Mamba2Mixer(spec, weights, self.library)


class Mamba2Mixer(NativeMixer):
    """x [T, 2 H P + 2 G N + H]: gates, inputs, B, C and dt."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        super().__init__(spec, weights, library)
        state_dim, groups, number = int(self.options["state_dim"]), spec.num_kv_heads, self.number
        self.inner = spec.num_heads * spec.head_dim
        self.channels = self.inner + 2 * groups * state_dim
        self.normed, self.multiplied = self.options.get("normed", 1.0), self.options.get("multiplied", 0.0)
        self.convolution = native.Convolution(channels=self.channels, kernel=int(self.options["kernel"]), number=number)
        self.recurrence = native.StateSpace(
            heads=spec.num_heads, groups=groups, dim=spec.head_dim, state_dim=state_dim,
            dt_min=self.options.get("dt_min", 0.0), dt_max=self.options.get("dt_max", math.inf), number=number,
        )  # fmt: skip
        self.norm = native.GatedNorm(
            x_stride=self.channels, groups=groups, size=self.inner // groups, weight_stride=self.inner // groups,
            eps=self.options["eps"], gate_first=bool(self.options.get("gate_first", 1.0)), number=number,
        )  # fmt: skip

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x, (conv, states) = rows_apart(x), caches[self.spec.layer]
        mixed = (x.new_zeros if plan.padded else x.new_empty)(len(x), self.channels, dtype=torch.float32)
        convolution, recurrence, norm = self.convolution, self.recurrence, self.norm
        last = self.inner + self.channels
        if self.multiplied:
            norm.multipliers = self._address("multipliers")
            convolution.multipliers = self._address("multipliers", self.inner)
            recurrence.multipliers = self._address("multipliers", last)
        convolution.bias = self._address("conv_bias")
        self._convolved(convolution, x[:, self.inner :], conv, plan, mixed)
        recurrence.launch, recurrence.mixed = ctypes.addressof(plan.launch), mixed.data_ptr()
        recurrence.dt, recurrence.dt_stride = x[:, last:].data_ptr(), x.stride(0)
        recurrence.state, recurrence.slot_stride = states.data_ptr(), states.stride(0)
        recurrence.a_log, recurrence.d = self._address("a_log"), self._address("d")
        recurrence.dt_bias = self._address("dt_bias")
        self.library.tessera_cpu_state_space(recurrence)
        out = x.new_empty(len(x), self.inner)
        norm.x, norm.gate, norm.gate_stride = mixed.data_ptr(), x.data_ptr(), x.stride(0)
        norm.weight, norm.out, norm.tokens = self._address("norm") if self.normed else None, out.data_ptr(), len(x)
        self.library.tessera_cpu_gated_norm(norm)
        return out
