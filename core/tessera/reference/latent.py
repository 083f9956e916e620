"""Latent attention in plain torch: the reference definition. Rows of one token, as in a decode step, are computed
absorbed, others expanded (LatentLayer); both give the same.

Shapes are static, and unused memory may hold anything, as in the attention over blocks of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.platform.attention import AttentionGroup, CacheConstraints, Caches, LatentLayerSpec
from tessera.platform.device import Device, Reason
from tessera.platform.latent import LatentBackend, LatentHeads, LatentLayer
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.reference.attention import PagedPlan

HEADS = 8
"""Whose scores are computed together: [R, HEADS, W, K]. Those of all heads of a real model would take tens of GiB."""


class ReferenceLatentAttention(LatentBackend):
    """Any sizes, any block size."""

    name = "reference_latent_attention"
    fallback = True

    def supports(self, spec: LatentLayerSpec) -> Reason | None:
        return None if spec.cache.dtype == spec.dtype else f"latents are kept in {spec.dtype}"

    def constraints(self, spec: LatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1))

    def bind(
        self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceLatentLayer:
        return ReferenceLatentLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return persistent(PagedPlan.from_launch(launch, group.number), group.name, buffers)


class AttentionOverLatents(LatentHeads):
    """Attention over the latents that are seen, whichever those are."""

    def write(self, latent: Tensor, caches: Caches, plan: PagedPlan) -> None:
        (plane,) = caches[self.spec.layer]
        plane.index_put_((plan.block, plan.offset), latent)

    def over(self, q: Tensor, seen: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None) -> Tensor:
        """q [T, H, nope_dim + rope_dim], seen [R, W, K] -> [T, H, value_dim]"""
        (plane,) = caches[self.spec.layer]
        latents = plane[plan.tables].flatten(1, 2).float()  # [R, K, rank + rope_dim]
        latents = torch.where(plan.filled[:, 0, :, None], latents, 0.0)
        queries = q[plan.grid.token].float()  # [R, W, H, D]
        mixed = (self.absorbed if queries.shape[1] == 1 else self.expanded)(queries, latents, seen)
        result = mixed[plan.grid.row, plan.grid.place].to(q.dtype)
        return result if out is None else out.copy_(result)

    def expanded(self, queries: Tensor, latents: Tensor, seen: Tensor) -> Tensor:
        """queries [R, W, H, nope_dim + rope_dim], latents [R, K, rank + rope_dim], seen [R, W, K] -> [R, W, H,
        value_dim], with the key and the value of each head and token, of a few heads at a time."""
        parts = zip(queries.split(HEADS, dim=2), self.weights["kv_up"].split(HEADS), strict=True)
        return torch.cat([self._of_heads(some, latents, up, seen) for some, up in parts], dim=2)

    def _of_heads(self, queries: Tensor, latents: Tensor, up: Tensor, seen: Tensor) -> Tensor:
        """expanded() of some heads. up: their rows of kv_up."""
        spec = self.spec
        compressed, turned = latents.split((spec.cache.rank, spec.cache.rope_dim), dim=-1)
        heads = torch.einsum("rkc,hdc->rkhd", compressed, up.float())
        keys, values = heads.split((spec.nope_dim, spec.value_dim), dim=-1)
        keys = torch.cat((keys, turned[:, :, None].expand(-1, -1, len(up), -1)), dim=-1)
        weights = self._weights(torch.einsum("rwhd,rkhd->rhwk", queries, keys), seen)
        return torch.einsum("rhwk,rkhd->rwhd", weights, values)

    def absorbed(self, queries: Tensor, latents: Tensor, seen: Tensor) -> Tensor:
        """The same over the latents themselves, as attention with one head of keys."""
        spec = self.spec
        key_up, value_up = self.weights["kv_up"].float().split((spec.nope_dim, spec.value_dim), dim=1)
        plain, turned = queries.split((spec.nope_dim, spec.cache.rope_dim), dim=-1)
        queries = torch.cat((torch.einsum("rwhd,hdc->rwhc", plain, key_up), turned), dim=-1)
        weights = self._weights(torch.einsum("rwhc,rkc->rhwk", queries, latents), seen)
        mixed = torch.einsum("rhwk,rkc->rwhc", weights, latents[..., : spec.cache.rank])
        return torch.einsum("rwhc,hdc->rwhd", mixed, value_up)

    def _weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        """The softmax of scores [R, H, W, K] over the keys that are seen; 0 for queries that see none."""
        scores = (scores * self.spec.scale).masked_fill(~seen[:, None], -torch.inf)
        peak = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        weights = torch.exp(scores - peak)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class ReferenceLatentLayer(AttentionOverLatents, LatentLayer):
    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None) -> Tensor:
        return self.over(q, plan.filled & (plan.key <= plan.query), caches, plan, out)
