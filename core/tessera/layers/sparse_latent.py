"""The block of latent attention over selected tokens: that of latent attention, with an indexer that selects them, or
with the tokens that an earlier layer's indexer selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.gated_norm import GatedNorm
from tessera.layers.indexer import Indexer, IndexerShape, SelectedTokens, query_shard
from tessera.layers.latent import LatentAttention, LatentShape
from tessera.layers.linear import Bounds, WeightShard
from tessera.layers.norm import AddNorm, Norm, NormLinear
from tessera.platform.attention import Caches, SparseLatentLayerSpec
from tessera.platform.latent import LatentInput
from tessera.platform.launch import Launch
from tessera.platform.sparse_attention import SparseLatentInput


@dataclass(frozen=True)
class SparseLatentShape(LatentShape):
    """One such block of a model, over all ranks. Queries are not computed from x."""

    limit: int = 0  # tokens that are selected for a query, at most
    indexer: IndexerShape | None = None  # None: what an earlier layer's selected is used
    selection: SelectedTokens | None = None  # that of the model, in every layer

    def spec(self, **values: Any) -> SparseLatentLayerSpec:
        return SparseLatentLayerSpec(**values, limit=self.limit)

    def block(
        self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable
    ) -> SparseLatentAttention:
        assert norm is not None, "the models that have such blocks begin them with a norm"
        return SparseLatentAttention(build, prefix, norm, self, tables)


class SparseLatentAttention(LatentAttention):
    """An AttentionBlock. norm: the input norm and its name."""

    def __init__(
        self, build: Build, prefix: str, norm: tuple[str, Norm], shape: SparseLatentShape, tables: RotaryTable
    ) -> None:
        assert shape.selection is not None
        assert shape.query_rank is not None
        self.selection = shape.selection
        self.indexer: Indexer | None = None
        self.norm: AddNorm | GatedNorm | None = None
        if shape.indexer is not None:
            self.indexer = Indexer(build, f"{prefix}.indexer", shape.indexer, tables)
            self.norm = self._norm(build, *norm, shape)
        super().__init__(build, prefix, norm if self.norm is None else None, shape, tables)
        self.selection.last = self.spec.layer
        self.query_width = self.spec.num_heads * self.spec.query_dim  # elements of a token's queries

    def _norm(self, build: Build, name: str, norm: Norm, shape: SparseLatentShape) -> AddNorm | GatedNorm:
        """The norm before the projections, whose result the indexer reads too."""
        return AddNorm(build, name, shape.hidden, norm)

    def _query(
        self, build: Build, prefix: str, shape: LatentShape, heads: Bounds, others: Sequence[WeightShard] = ()
    ) -> NormLinear | None:
        """With the indexer's queries behind those of attention."""
        assert isinstance(shape, SparseLatentShape)
        if shape.indexer is not None:
            others = [*others, query_shard(f"{prefix}.indexer", shape.indexer)]
        return super()._query(build, prefix, shape, heads, others)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        if self.norm is not None:
            x, residual = self.norm(x, residual)
        projected, residual = self.input(x, residual)
        compressed, latent = projected.split(self.sizes, dim=-1)
        both, of_indexer = self.queries(compressed)
        if self.indexer is not None:
            self.selection.tokens = self.indexer(x, of_indexer, launch, caches)
        projections = LatentInput(both[:, : self.query_width], latent)
        read = SparseLatentInput(projections, self.selection.for_layer(self.spec.layer))
        mixed = self.mixer.fused(read, launch.positions, caches, launch.plans[self.spec.layer])
        return self.result(mixed, both), residual

    def queries(self, compressed: Tensor) -> tuple[Tensor, Tensor]:
        """The queries of attention, with whatever result() reads behind them, and those of the indexer, if there is
        one."""
        assert self.query is not None
        both, _ = self.query(compressed, None)
        return both, both[:, self.query_width :]

    def result(self, mixed: Tensor, both: Tensor) -> Tensor:
        """What the output projection reads. both: as of queries()."""
        return mixed
