"""The gated delta net: the convolution, the delta rule and the gated norm, for rows of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer, Reason
from tessera_triton.convolution import Convolution
from tessera_triton.delta_rule import delta_chunks, delta_rows, delta_steps
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.gated_norm import GatedNorm
from tessera_triton.state import CHUNK, StateLayer, StatePlan, TritonState

_WIDEST = 256  # the largest head of queries and keys
_LEAST = 16  # elements of a side of a product
_STEP = 4096  # elements of a state that a program of rows of a few tokens holds
_COLUMNS = 32  # of a state that a program holds which walks chunks


class TritonGatedDeltaNet(TritonState):
    name, kind = "triton-delta-net", "gated_delta_net"

    def supports(self, spec: LayerSpec) -> Reason | None:
        reason = super().supports(spec)
        if reason is not None:
            return reason
        widest = max(spec.head_dim, int(dict(spec.options)["key_dim"]))
        return f"heads of {widest}, more than {_WIDEST}" if widest > _WIDEST else None

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return GatedDeltaNetLayer(spec, weights, self.facts, self.launch)


class GatedDeltaNetLayer(StateLayer):
    """x [T, 2 Hk Dk + 2 Hv Dv + 2 Hv]: queries, keys, values, gates, b and a."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher) -> None:
        super().__init__(spec, weights, facts, launch)
        self.key_dim, self.values = int(self.options["key_dim"]), spec.num_heads * spec.head_dim
        self.channels = 2 * spec.num_kv_heads * self.key_dim + self.values
        self.convolution = Convolution(launch, self.channels, self.taps)
        self.norm = GatedNorm(launch, spec.num_heads, spec.head_dim, self.options["eps"])

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        conv, states = caches[self.spec.layer]
        mixed = x.new_empty(len(x), self.channels, dtype=torch.float32)
        mixed = self.convolution(x[:, : self.channels], self.weights["conv"], conv, plan, mixed)
        results = plan.blank(x, self.values, torch.float32)
        last = self.channels + self.values
        self._rule(mixed, x[:, last:], states, plan, results)
        return self.norm(results, x[:, self.channels : last], self.weights["norm"], x.new_empty(len(x), self.values))

    def _rule(self, mixed: Tensor, side: Tensor, states: Tensor, plan: StatePlan, out: Tensor) -> None:
        spec, key_dim = self.spec, max(power_of_two(self.key_dim), _LEAST)
        taken = mixed, side, side.stride(0), self.weights["a_log"], self.weights["dt_bias"]
        scales = spec.scale, self.options["beta_scale"]
        sizes: dict[str, Any] = {
            "HEADS": spec.num_heads, "KEY_HEADS": spec.num_kv_heads, "KEY_DIM": self.key_dim, "DIM": spec.head_dim,
            "BLOCK_K": key_dim,
        }  # fmt: skip
        if plan.few and plan.tokens:
            columns = min(max(power_of_two(spec.head_dim), _LEAST), _STEP // key_dim)
            self.launch(
                delta_steps, (plan.few, spec.num_heads, -(-spec.head_dim // columns)),
                *taken, states, states.stride(0), *plan.arguments, out, *scales, int(plan.fills),
                **sizes, BLOCK_V=columns, num_warps=4,
            )  # fmt: skip
        if plan.chunks:
            columns = min(max(power_of_two(spec.head_dim), _LEAST), _COLUMNS)
            systems = mixed.new_empty(plan.chunks, spec.num_heads, 2, CHUNK, CHUNK, dtype=torch.float16)
            sizes["CHUNK"] = CHUNK
            self.launch(
                delta_chunks, (plan.chunks, spec.num_heads),
                *taken, plan.starts, plan.lengths, systems, *scales, plan.few, plan.rows,
                **sizes, DOUBLINGS=CHUNK.bit_length() - 1, num_warps=self.warps, num_stages=1,
            )  # fmt: skip
            self.launch(
                delta_rows, (plan.rows - plan.few, spec.num_heads, -(-spec.head_dim // columns)),
                *taken, states, states.stride(0), *plan.arguments, systems, out, *scales, plan.few,
                **sizes, BLOCK_V=columns, num_warps=self.warps, num_stages=1,
            )  # fmt: skip
