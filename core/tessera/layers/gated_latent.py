"""The block of latent attention over selected tokens with gates (A.X-K2): one product gives queries and gates of the
result, from what the queries of other models are computed from and from the same before its norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.gated_norm import GatedNorm
from tessera.layers.indexer import query_shard
from tessera.layers.latent import LatentShape
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear, norm_parameter
from tessera.layers.sparse_latent import SparseLatentAttention, SparseLatentShape
from tessera.ops import AddSpec, SigmoidGateSpec


@dataclass(frozen=True)
class GatedLatentShape(SparseLatentShape):
    """One such block of a model, over all ranks. Every layer has an indexer."""

    gate_rank: int = 0  # of the gates of the norm before the block (GatedNorm)

    def block(
        self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable
    ) -> GatedLatentAttention:
        assert norm is not None, "as of SparseLatentShape"
        return GatedLatentAttention(build, prefix, norm, self, tables)


class GatedLatentAttention(SparseLatentAttention):
    """An AttentionBlock. norm: the input norm and its name."""

    def __init__(
        self, build: Build, prefix: str, norm: tuple[str, Norm], shape: GatedLatentShape, tables: RotaryTable
    ) -> None:
        super().__init__(build, prefix, norm, shape, tables)
        self.gated_queries = GatedQueries(build, prefix, shape)
        n = self.spec.num_heads * shape.value_dim
        self.gate = build.ops.bind("sigmoid_gate", SigmoidGateSpec(n, build.dtype, n))

    def _norm(self, build: Build, name: str, norm: Norm, shape: SparseLatentShape) -> GatedNorm:
        assert isinstance(shape, GatedLatentShape)
        return GatedNorm(build, name, shape.hidden, shape.gate_rank, norm)

    def _query(
        self, build: Build, prefix: str, shape: LatentShape, heads: Bounds, others: Sequence[WeightShard] = ()
    ) -> NormLinear | None:
        """None: gated_queries has them."""
        return None

    def queries(self, compressed: Tensor) -> tuple[Tensor, Tensor]:
        return self.gated_queries(compressed)

    def result(self, mixed: Tensor, both: Tensor) -> Tensor:
        gated: Tensor = self.gate(mixed, both[:, self.query_width :])
        return gated


class GatedQueries:
    """Queries of attention with gates behind them, and queries of the indexer. The checkpoint's rows are, for each
    head, its query and then its gates; its columns are for the normed input and then for the other."""

    def __init__(self, build: Build, prefix: str, shape: GatedLatentShape) -> None:
        assert shape.query_rank is not None
        assert shape.indexer is not None
        rank, head = shape.query_rank, shape.query_dim + shape.value_dim
        heads = range(*build.shard(shape.heads, "the number of attention heads"))
        whole = WeightShard(f"{prefix}.q_b_proj", shape.heads * head, 2 * rank)
        parts = (0, shape.query_dim), (shape.query_dim, head)
        rows = [(one * head + first, one * head + last) for first, last in parts for one in heads]
        shards = [replace(whole, rows=bounds) for bounds in rows]
        self.from_normed = Linear(build, [replace(shard, columns=(0, rank)) for shard in shards])
        self.from_other = Linear(build, [replace(shard, columns=(rank, 2 * rank)) for shard in shards])
        self.of_indexer = Linear(build, [query_shard(f"{prefix}.indexer", shape.indexer)])
        self.add = build.ops.bind("add", AddSpec(len(heads) * head, build.dtype))
        spec = Norm(shape.latent_eps).spec(rank, build.dtype)
        self.norm = build.ops.bind("rms_norm", spec)
        self.norm_weight = norm_parameter(build, f"{prefix}.q_a_layernorm", spec)

    def __call__(self, compressed: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(compressed, self.norm_weight.tensor)
        both: Tensor = self.add(self.from_normed(normed), self.from_other(compressed))
        return both, self.of_indexer(normed)
