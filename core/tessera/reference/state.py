"""Linear attention over a StateSpec: the reference definition of a mixer with one matrix per head instead of keys and
values.

S_t = g S_(t-1) + k_t v_t^T and y_t = scale q_t S_t with one decay g per head (retention, arXiv:2307.08621), in its
chunkwise form, so that shapes are static.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.platform.attention import (
    AttentionBackend,
    AttentionGroup,
    CacheConstraints,
    Caches,
    CacheSpec,
    KVLayout,
    LayerSpec,
    Mixer,
    Plane,
    StateSpec,
)
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.reference.state_grid import StateGrid, StatePlan, sparse


class StateBackend(AttentionBackend):
    """A mixer of one kind over a StateSpec, whose planes are the state's tensors."""

    kind: str
    fallback = True

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != self.kind or not isinstance(spec.cache, StateSpec):
            return f"no {self.kind.replace('_', ' ')} over {spec.kind}"
        return None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(1,))

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, StateSpec)
        return KVLayout(
            tuple(
                Plane(name, spec.dtype, tuple((f"{name}{i}", n) for i, n in enumerate(shape)))
                for name, shape in spec.shapes
            )
        )

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> StatePlan:
        slot = launch.block_tables[group.number][:, 0]
        if buffers is None and group.device.eager and sparse(launch):
            return StatePlan.by_length(launch, slot, group.device)
        plan: StatePlan = persistent(StatePlan.in_one_grid(launch, slot), group.name, buffers)
        return plan


class StateLayer(Mixer):
    """A mixer over a StateSpec, which computes all rows of a grid at once."""

    def fused(self, x: Any, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        results = [self.mix(grid.laid(x), caches, grid).flatten(0, 1) for grid in plan.grids]
        result = results[0] if len(results) == 1 else torch.cat(results)
        return result[plan.place].to((x[0] if isinstance(x, tuple) else x).dtype)

    @abstractmethod
    def mix(self, laid: Any, caches: Caches, grid: StateGrid) -> Tensor:
        """What the layer returns for tokens [R, W, ...], as the grid lays them out: [R, W, n]. It reads the states at
        the grid's slots, and writes those behind the rows."""


class ReferenceLinearAttention(StateBackend):
    name = "reference_linear_attention"
    kind = "linear_attention"

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> LinearAttentionLayer:
        return LinearAttentionLayer(spec, device)


class LinearAttentionLayer(StateLayer):
    def __init__(self, spec: LayerSpec, device: Device) -> None:
        self.spec = spec
        head = torch.arange(spec.num_heads, dtype=torch.float32, device=device.target)
        self.log_decay = torch.log1p(-torch.exp2(-5.0 - head))  # [H]

    def mix(self, laid: Tensor, caches: Caches, grid: StateGrid) -> Tensor:
        spec = self.spec
        q, k, v = laid.unflatten(-1, (3 * spec.num_heads, spec.head_dim)).chunk(3, dim=2)
        (states,) = caches[spec.layer]
        before = torch.where(grid.fresh[:, None, None, None], 0.0, states[grid.slot].float())  # [R, H, D, D]
        place = torch.arange(laid.shape[1], device=laid.device)
        age = (place[:, None] - place[None, :]).clamp(min=0)
        decay = torch.exp(self.log_decay[:, None, None] * age) * (place[:, None] >= place[None, :])  # [H, W, W]
        inside = torch.einsum("rihd,rjhd,hij,rjhe->rihe", q, k, decay, v)
        since = torch.exp(self.log_decay[None, :] * (place[:, None] + 1))  # [W, H]
        across = torch.einsum("rihd,ih,rhde->rihe", q, since, before)
        left = (grid.length[:, None] - 1 - place[None, :]).clamp(min=0)  # [R, W]
        fading = torch.exp(self.log_decay * left[..., None])  # [R, W, H]
        whole = torch.exp(self.log_decay * grid.length[:, None])[..., None, None]
        after = whole * before + torch.einsum("rjhd,rjh,rjhe->rhde", k, fading, v)
        states.index_put_((grid.slot,), after.to(states.dtype))
        return ((inside + across) * spec.scale).flatten(2)
