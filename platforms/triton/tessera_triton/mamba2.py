"""Mamba 2: the convolution, the recurrence and the gated norm, for rows of any length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer, Reason
from tessera_triton.convolution import Convolution
from tessera_triton.emission import ROW
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.gated_norm import GatedNorm
from tessera_triton.state import StateLayer, StatePlan, TritonState
from tessera_triton.state_space import space_rows, space_steps

_WIDEST = 128  # the most elements of B, and of C; compilers take minutes for more on some devices
_LEAST = 16  # elements of a side of a product
_STEP = 4096  # elements of a state that a program of rows of a few tokens holds
_ROWS = 32  # of a state that a program holds which walks chunks
_AT_ONCE = 2048  # elements of B of a chunk; more find no room in registers
_LONGEST = 64  # tokens of a chunk


class TritonMamba2(TritonState):
    name, kind = "triton-mamba2", "mamba2"

    def supports(self, spec: LayerSpec) -> Reason | None:
        reason = super().supports(spec)
        if reason is not None:
            return reason
        state_dim, group = int(dict(spec.options)["state_dim"]), spec.num_heads * spec.head_dim // spec.num_kv_heads
        if state_dim > _WIDEST:
            return f"states of {state_dim} for an element, more than {_WIDEST}"
        return f"groups of {group} elements, more than {ROW}" if group > ROW else None

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return Mamba2Layer(spec, weights, self.facts, self.launch)


class Mamba2Layer(StateLayer):
    """x [T, 2 H P + 2 G N + H]: gates, inputs, B, C and dt."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher) -> None:
        super().__init__(spec, weights, facts, launch)
        self.state_dim, groups = int(self.options["state_dim"]), spec.num_kv_heads
        self.inner = spec.num_heads * spec.head_dim
        self.channels = self.inner + 2 * groups * self.state_dim
        self.normed = bool(self.options.get("normed", 1.0))
        self.limits = self.options.get("dt_min", 0.0), self.options.get("dt_max", math.inf)
        self.convolution = Convolution(launch, self.channels, self.taps)
        gate_first = bool(self.options.get("gate_first", 1.0))
        self.norm = GatedNorm(launch, groups, self.inner // groups, self.options["eps"], gate_first)

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        conv, states = caches[self.spec.layer]
        sizes = self.inner, self.channels, self.spec.num_heads
        of_gate, of_inputs, of_dt = self._multipliers(sizes)
        gate, inputs, dt = x.split(sizes, dim=1)
        mixed = x.new_empty(len(x), self.channels, dtype=torch.float32)
        self.convolution(inputs, self.weights["conv"], conv, plan, mixed, self.weights["conv_bias"], of_inputs)
        results = plan.blank(x, self.inner, torch.float32)
        self._recurrence(mixed, dt, of_dt, states, plan, results)
        weight = self.weights["norm"] if self.normed else None
        return self.norm(results, gate, weight, x.new_empty(len(x), self.inner), of_gate)

    def _multipliers(self, sizes: tuple[int, int, int]) -> tuple[Tensor | None, ...]:
        """Of gates, of what is convolved, and of dt."""
        return self.weights["multipliers"].split(sizes) if self.options.get("multiplied") else (None, None, None)

    def _recurrence(
        self, mixed: Tensor, dt: Tensor, multipliers: Tensor | None, states: Tensor, plan: StatePlan, out: Tensor
    ) -> None:
        spec, weights, state_dim = self.spec, self.weights, max(power_of_two(self.state_dim), _LEAST)
        taken = (
            mixed, dt, dt.stride(0), dt if multipliers is None else multipliers, weights["a_log"], weights["d"],
            weights["dt_bias"], states, states.stride(0), *plan.arguments, out, *self.limits,
        )  # fmt: skip
        sizes: dict[str, Any] = {
            "HEADS": spec.num_heads, "GROUPS": spec.num_kv_heads, "DIM": spec.head_dim, "STATE_DIM": self.state_dim,
            "MULTIPLIED": multipliers is not None, "BLOCK_N": state_dim,
        }  # fmt: skip
        whole = max(power_of_two(spec.head_dim), _LEAST)
        if plan.few and plan.tokens:
            rows = min(whole, _STEP // state_dim)
            self.launch(
                space_steps, (plan.few, spec.num_heads, -(-spec.head_dim // rows)), *taken, int(plan.fills),
                **sizes, BLOCK_P=rows, num_warps=4,
            )  # fmt: skip
        if plan.chunks:
            rows = min(whole, _ROWS)
            self.launch(
                space_rows, (plan.rows - plan.few, spec.num_heads, -(-spec.head_dim // rows)), *taken, plan.few,
                **sizes, BLOCK_P=rows, CHUNK=min(_AT_ONCE // state_dim, _LONGEST), num_warps=self.warps,
                num_stages=1,
            )  # fmt: skip
