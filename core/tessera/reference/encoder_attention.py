"""Encoder attention in plain torch: the reference definition. Every token sees all tokens of its own row in the launch,
within a window if there is one, and nothing is kept for later steps.

Shapes are static, as in the attention over blocks: rows are laid out as [rows, widest row]. Queries are taken a tile at
a time, since all scores of a long row at once take more memory than its model. What is outside of a row is masked, so
padding may hold anything, including NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.platform.attention import AttentionBackend, AttentionGroup, EncoderLayer, LayerSpec
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.reference.attention import RowGrid

_TILE = 256  # queries of a row


class ReferenceEncoderAttention(AttentionBackend):
    """Any head size, grouped queries, windows, soft caps, a bias by distance."""

    name = "reference_encoder_attention"
    fallback = True

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != "encoder_attention":
            return f"no encoder attention over {spec.kind}"
        return "no sinks where tokens see their whole text" if spec.sinks else None

    def bind(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceEncoderLayer:
        return ReferenceEncoderLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> RowGrid:
        grid: RowGrid = persistent(RowGrid.from_launch(launch), group.name, buffers)
        return grid


class ReferenceEncoderLayer(EncoderLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: RowGrid) -> Tensor:
        there = plan.valid[:, :, None, None]
        keys, values = (torch.where(there, x[plan.token].float(), 0.0) for x in (k, v))  # [R, W, Hk, D]
        grouped = q[plan.token].float().unflatten(2, (self.spec.num_kv_heads, -1))  # [R, W, Hk, G, D]
        mixed = torch.cat(
            [
                self._tile(tile, first, keys, values, plan.valid)
                for first, tile in zip(range(0, keys.shape[1], _TILE), grouped.split(_TILE, dim=1), strict=True)
            ],
            dim=1,
        )
        return mixed.flatten(2, 3)[plan.row, plan.place].to(q.dtype)

    def _tile(self, q: Tensor, first: int, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
        """q [R, w, Hk, G, D], queries at places first to first + w of their rows, over keys and values [R, W, Hk, D]
        where they are valid [R, W]."""
        spec, at = self.spec, q.device
        scores = torch.einsum("rwhgd,rkhd->rhgwk", q, keys) * spec.scale
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        query = torch.arange(first, first + q.shape[1], device=at)
        distance = torch.arange(keys.shape[1], device=at)[None, :] - query[:, None]  # [w, W]
        if spec.relative_reach:
            reach = spec.relative_reach - 1
            bias = self.weights["relative_bias"].float()[:, distance.clamp(-reach, reach) + reach]  # [H, w, W]
            scores = scores + bias.unflatten(0, (spec.num_kv_heads, -1))
        seen = valid[:, None, :]
        if spec.window is not None:
            seen = seen & (distance.abs() < spec.window)
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        peak = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)  # rows of padding see nothing
        weights = torch.exp(scores - peak)
        total = weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return torch.einsum("rhgwk,rkhd->rwhgd", weights / total, values)
