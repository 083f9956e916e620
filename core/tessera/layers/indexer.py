"""The indexer of sparse attention: projections of its queries and keys, and the bound mixer. It is small, so every rank
has all of it and selects the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tessera.layers.attention import LateWeights, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.norm import LayerNorm
from tessera.layers.rotary import Rope
from tessera.layers.weights import Parameter
from tessera.ops import RotarySpec
from tessera.platform.attention import Caches, IndexerLayerSpec, IndexSpec
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part
from tessera.platform.sparse_attention import IndexerInput

_CHOOSES = "weights of an indexer's heads choose, and are small"
"""Why they are never quantized."""


@dataclass(frozen=True)
class IndexerShape:
    """An indexer of a model."""

    hidden: int
    heads: int  # of queries
    dim: int  # elements of a query, and of a token's key
    query_rank: int  # of what queries are computed from
    limit: int  # tokens that are selected for a query, at most
    rope: Rope  # of the first elements of queries and keys
    style: str  # which of these are turned together (RotarySpec)
    max_positions: int
    key_eps: float = 1e-6  # of the norm of keys


class SelectedTokens:
    """What the last indexer selected, for the layers behind it that use the same. One of a model, which all of its
    sparse layers have."""

    def __init__(self) -> None:
        # [T, limit] int32 (IndexerLayer.select()), from when an indexer selected them until the last layer of the model
        # or its pipeline stage has used them; otherwise None
        self.tokens: Tensor | None = None
        # number of the last layer that uses them; None until there is one
        self.last: int | None = None

    def for_layer(self, layer: int) -> Tensor:
        """The tokens, for the layer of this number."""
        tokens = self.tokens
        assert tokens is not None, "the first layer of a stage has an indexer"
        if layer == self.last:
            self.tokens = None
        return tokens


class Indexer:
    """prefix: its name in the checkpoint."""

    def __init__(self, build: Build, prefix: str, shape: IndexerShape, tables: RotaryTable) -> None:
        self.keys = Linear(build, [WeightShard(f"{prefix}.wk", shape.dim, shape.hidden)])
        self.norm = LayerNorm(build, f"{prefix}.k_norm", shape.dim, shape.key_eps)
        self.spec = IndexerLayerSpec(
            layer=len(build.mixers),
            num_heads=shape.heads,
            hidden=shape.hidden,
            limit=shape.limit,
            scale=(shape.heads * shape.dim) ** -0.5,
            dtype=build.dtype,
            cache=IndexSpec(shape.dim, build.dtype),
            rotary=RotarySpec(shape.dim, shape.rope.dim, shape.style),
        )
        weights = LateWeights()
        weights["cos_sin"] = tables.table(shape.rope, shape.max_positions)
        weights.parameters["head_weights"] = _head_weights(build, f"{prefix}.weights_proj", shape)
        self.mixer = build.mixer(self.spec, weights)

    def __call__(self, x: Tensor, queries: Tensor, launch: Launch, caches: Caches) -> Tensor:
        """x [T, hidden], normed; queries [T, H dim] -> as IndexerLayer.select()."""
        keys = self.norm(self.keys(x))
        plan = launch.plans[self.spec.layer]
        return self.mixer.fused(IndexerInput(x, queries, keys), launch.positions, caches, plan)


def query_shard(prefix: str, shape: IndexerShape) -> WeightShard:
    """The product of an indexer's queries, which have their input in common with those of attention."""
    return WeightShard(f"{prefix}.wq_b", shape.heads * shape.dim, shape.query_rank)


def _head_weights(build: Build, name: str, shape: IndexerShape) -> Parameter:
    """The weight of that name (IndexerBackend), in float32 as in the models' original code."""
    build.weights.skip(name, _CHOOSES)
    part = build.weights.decoded(
        Part(f"{name}.weight", (shape.heads, shape.hidden), dtype="float32"), "float32", "Linear"
    )
    return build.register_parameter(Parameter({"weight": [part]}, _copied))


def _copied(raw: dict[str, Tensor], into: Packed | None) -> Packed:
    if into is None:
        return raw
    into["weight"].copy_(raw["weight"])
    return into
