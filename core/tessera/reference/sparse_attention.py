"""Sparse attention in plain torch: the reference definition of indexers, and of latent attention over what they select.

The attention is computed over all tokens, of which all but the selected ones are masked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.attention import (
    AttentionGroup,
    CacheConstraints,
    Caches,
    IndexerLayerSpec,
    SparseLatentLayerSpec,
)
from tessera.platform.device import Device, Reason
from tessera.platform.launch import Buffers, Launch, persistent
from tessera.platform.ops import BoundOps
from tessera.platform.sparse_attention import IndexerBackend, IndexerLayer, SparseLatentBackend, SparseLatentLayer
from tessera.reference.attention import PagedPlan
from tessera.reference.latent import HEADS, AttentionOverLatents

QUERIES = 64
"""Of each row, for which all tokens are rated and sorted at once: [R, QUERIES, K]. Sorting takes five times as many
bytes as a rating."""


class ReferenceIndexer(IndexerBackend):
    """Any sizes, any block size."""

    name = "reference_indexer"
    fallback = True

    def supports(self, spec: IndexerLayerSpec) -> Reason | None:
        return None if spec.cache.dtype == spec.dtype else f"keys are kept in {spec.dtype}"

    def constraints(self, spec: IndexerLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1))

    def bind(
        self, spec: IndexerLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceIndexerLayer:
        return ReferenceIndexerLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return persistent(PagedPlan.from_launch(launch, group.number), group.name, buffers)


class ReferenceIndexerLayer(IndexerLayer):
    def write(self, keys: Tensor, caches: Caches, plan: PagedPlan) -> None:
        (plane,) = caches[self.spec.layer]
        plane.index_put_((plan.block, plan.offset), keys)

    def select(self, queries: Tensor, weights: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        (plane,) = caches[self.spec.layer]
        keys = plane[plan.tables].flatten(1, 2).float()  # [R, K, D]
        keys = torch.where(plan.filled[:, 0, :, None], keys, 0.0)
        parts = zip(plan.grid.token.split(QUERIES, dim=1), self.seen(plan).split(QUERIES, dim=1), strict=True)
        best = [
            self.best(self.scores(queries[token].float(), weights[token], keys).masked_fill(~seen, -torch.inf))
            for token, seen in parts
        ]
        return torch.cat(best, dim=1)[plan.grid.row, plan.grid.place].to(torch.int32)

    def seen(self, plan: PagedPlan) -> Tensor:
        """The tokens among which each query's are selected: [R, W, K]."""
        return plan.filled & (plan.key <= plan.query)

    def scores(self, queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """queries [R, W, H, D], weights [R, W, H], keys [R, K, D] -> [R, W, K], a few heads at a time."""
        total = queries.new_zeros(*queries.shape[:2], keys.shape[1])
        for some, weight in zip(queries.split(HEADS, dim=2), weights.split(HEADS, dim=2), strict=True):
            total += torch.einsum("rwh,rwhk->rwk", weight, self.rated(torch.einsum("rwhd,rkd->rwhk", some, keys)))
        return total * self.spec.scale

    def rated(self, products: Tensor) -> Tensor:
        """What a head adds, before it is weighted."""
        return products.relu()

    def best(self, scores: Tensor) -> Tensor:
        """scores [R, W, K], -inf for tokens that are not seen -> [R, W, limit], the best first."""
        ordered, places = scores.sort(dim=-1, descending=True, stable=True)
        best = torch.where(ordered == -torch.inf, -1, places)[..., : self.spec.limit]
        return F.pad(best, (0, self.spec.limit - best.shape[-1]), value=-1)


class ReferenceSparseLatentAttention(SparseLatentBackend):
    """Any sizes, any block size."""

    name = "reference_sparse_latent_attention"
    fallback = True

    def supports(self, spec: SparseLatentLayerSpec) -> Reason | None:
        return None if spec.cache.dtype == spec.dtype else f"latents are kept in {spec.dtype}"

    def constraints(self, spec: SparseLatentLayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(16, 1))

    def bind(
        self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> ReferenceSparseLatentLayer:
        return ReferenceSparseLatentLayer(spec, weights, ops)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return persistent(PagedPlan.from_launch(launch, group.number), group.name, buffers)


class ReferenceSparseLatentLayer(AttentionOverLatents, SparseLatentLayer):
    def attend(
        self, q: Tensor, selection: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None
    ) -> Tensor:
        return self.over(q, self.seen(selection[plan.grid.token], plan), caches, plan, out)

    def seen(self, selection: Tensor, plan: PagedPlan) -> Tensor:
        """selection [R, W, limit] -> [R, W, K], whether a token is selected. Padding may name any tokens."""
        number = plan.key.shape[-1]
        marks = torch.zeros(*selection.shape[:2], number + 1, dtype=torch.bool, device=selection.device)
        marks.scatter_(-1, selection.long().clamp(-1, number - 1) + 1, value=True)
        return marks[..., 1:]
