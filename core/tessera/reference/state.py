"""Linear attention over a StateSpec: the reference definition of a mixer with one matrix per head instead of keys and
values.

S_t = g S_(t-1) + k_t v_t^T and y_t = scale q_t S_t with one decay g per head (retention, arXiv:2307.08621), in its
chunkwise form, so that shapes are static.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from tessera.reference.attention import RowGrid


@dataclass(frozen=True)
class StatePlan:
    """grid; slot, length and fresh [R]. fresh: rows at their beginning, whose slot still holds another request's
    state."""

    grid: RowGrid
    slot: Tensor
    length: Tensor
    fresh: Tensor


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
        fresh = launch.seq_lens == launch.query_lens
        plan = StatePlan(RowGrid.from_launch(launch), launch.block_tables[group.number][:, 0], launch.query_lens, fresh)
        return persistent(plan, group.name, buffers)


class ReferenceLinearAttention(StateBackend):
    name = "reference_linear_attention"
    kind = "linear_attention"

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> LinearAttentionLayer:
        return LinearAttentionLayer(spec, device)


class LinearAttentionLayer(Mixer):
    def __init__(self, spec: LayerSpec, device: Device) -> None:
        self.spec = spec
        head = torch.arange(spec.num_heads, dtype=torch.float32, device=device.target)
        self.log_decay = torch.log1p(-torch.exp2(-5.0 - head))  # [H]

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        spec, grid = self.spec, plan.grid
        laid = torch.where(grid.valid[..., None], x[grid.token].float(), 0.0)  # [R, W, 3 H D]
        q, k, v = laid.unflatten(-1, (3 * spec.num_heads, spec.head_dim)).chunk(3, dim=2)
        (states,) = caches[spec.layer]
        before = torch.where(plan.fresh[:, None, None, None], 0.0, states[plan.slot].float())  # [R, H, D, D]
        place = torch.arange(laid.shape[1], device=laid.device)
        age = (place[:, None] - place[None, :]).clamp(min=0)
        decay = torch.exp(self.log_decay[:, None, None] * age) * (place[:, None] >= place[None, :])  # [H, W, W]
        inside = torch.einsum("rihd,rjhd,hij,rjhe->rihe", q, k, decay, v)
        since = torch.exp(self.log_decay[None, :] * (place[:, None] + 1))  # [W, H]
        across = torch.einsum("rihd,ih,rhde->rihe", q, since, before)
        left = (plan.length[:, None] - 1 - place[None, :]).clamp(min=0)  # [R, W]
        fading = torch.exp(self.log_decay * left[..., None])  # [R, W, H]
        whole = torch.exp(self.log_decay * plan.length[:, None])[..., None, None]
        after = whole * before + torch.einsum("rjhd,rjh,rjhe->rhde", k, fading, v)
        states.index_put_((plan.slot,), after.to(states.dtype))
        mixed = (inside + across) * spec.scale
        return mixed[grid.row, grid.place].flatten(1).to(x.dtype)
