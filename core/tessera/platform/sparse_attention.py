"""Sparse attention: the contracts of indexers, which select tokens, and of latent attention over what they select."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from tessera.platform.attention import (
    Caches,
    IndexerLayerSpec,
    IndexSpec,
    KVLayout,
    LatentSpec,
    Mixer,
    MixerBackend,
    MixerSpec,
    Plane,
    SparseLatentLayerSpec,
)
from tessera.platform.device import Tensor
from tessera.platform.latent import LatentHeads, LatentInput
from tessera.platform.launch import Plan
from tessera.platform.ops import BoundOps


class IndexerInput(NamedTuple):
    """What an indexer reads of tokens."""

    # from which its heads are weighted: [T, hidden], rows of any stride
    x: Tensor
    # of all heads, one after another, before they are turned: [T, H dim], rows of any stride
    queries: Tensor
    # normed, but not turned: [T, dim]
    keys: Tensor


class IndexerLayer(Mixer):
    """A bound indexer, which turns its input with the bound ops. A subclass adds write() and select().

    The score of a token is scale sum_h w_h relu(q_h k), where w is what the query's token weights the heads by."""

    def __init__(self, spec: IndexerLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        self.spec, self.weights = spec, weights
        self.rotary = ops.bind("rotary", spec.rotary) if spec.rotary is not None else None

    @abstractmethod
    def write(self, keys: Tensor, caches: Caches, plan: Plan) -> None:
        """Writes keys [T, dim], turned, into the cache slots of the plan."""

    @abstractmethod
    def select(self, queries: Tensor, weights: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """queries [T, H, dim], turned; weights [T, H] float32 -> [T, limit] int32: the positions of the tokens with the
        best scores, among the query's own and those before it, in any order; -1 in place of what a query has fewer. Of
        equal scores, the earlier token is better. In padding they may be anything."""

    def weigh(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> the weights of heads [T, H], in float32 whatever the dtype of x."""
        return x.float() @ self.weights["head_weights"].T

    def fused(self, x: IndexerInput, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """Turns queries and keys in place, then write(), select()."""
        queries = x.queries.unflatten(1, (self.spec.num_heads, self.spec.cache.dim))
        if self.rotary is not None:
            self.rotary(queries, x.keys[:, None], positions, self.weights["cos_sin"])
        self.write(x.keys, caches, plan)
        return self.select(queries, self.weigh(x.x), caches, plan)


class IndexerBackend(MixerBackend[IndexerLayerSpec]):
    """One implementation of indexers. The weights of bind() are "head_weights" [H, hidden] float32, and "cos_sin"
    [positions, rotary dim] float32 (cosines, then sines) if the spec has a rotary embedding."""

    def handles(self, spec: MixerSpec) -> bool:
        return isinstance(spec, IndexerLayerSpec)

    def kv_cache_layout(self, spec: IndexSpec, block_size: int) -> KVLayout:
        """Default: the keys, ordered (token, dim)."""
        return KVLayout((Plane("key", spec.dtype, (("token", block_size), ("dim", spec.dim))),))


class SparseLatentInput(NamedTuple):
    """What a layer's projections give, and what an indexer selected for each token."""

    # as of latent attention over all tokens
    projected: LatentInput
    # as of IndexerLayer.select(): [T, limit] int32
    selection: Tensor


class SparseLatentLayer(LatentHeads):
    """A bound layer of latent attention over selected tokens. A subclass adds write() and attend()."""

    @abstractmethod
    def attend(self, q: Tensor, selection: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None) -> Tensor:
        """q [T, H, nope_dim + rope_dim], turned; selection as in SparseLatentInput -> [T, H, value_dim]"""

    def fused(self, x: SparseLatentInput, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """Default: inputs(), write(), attend()."""
        q, latent = self.inputs(x.projected, positions)
        self.write(latent, caches, plan)
        return self.attend(q, x.selection, caches, plan).flatten(1)


class SparseLatentBackend(MixerBackend[SparseLatentLayerSpec]):
    """One implementation of latent attention over selected tokens. The weights of bind() are those of a
    LatentBackend."""

    def handles(self, spec: MixerSpec) -> bool:
        return isinstance(spec, SparseLatentLayerSpec)

    def kv_cache_layout(self, spec: LatentSpec, block_size: int) -> KVLayout:
        """Default: the latents, ordered (token, dim)."""
        return KVLayout((Plane("latent", spec.dtype, (("token", block_size), ("dim", spec.rank + spec.rope_dim))),))
