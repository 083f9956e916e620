"""The block of latent attention: norm and input projections (queries may have two with a norm between them), the bound
mixer, the output projection. Heads are sharded over the ranks, and each rank keeps the whole latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import LateWeights, PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear, norm_parameter
from tessera.layers.rotary import Rope
from tessera.layers.weights import Parameter
from tessera.ops import RotarySpec
from tessera.platform.attention import Caches, LatentLayerSpec, SparseLatentLayerSpec
from tessera.platform.latent import LatentInput
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed

_KV_UP = "it is multiplied with in two ways, expanded and absorbed"
"""Why the weight that keys and values come from is never quantized."""


@dataclass(frozen=True)
class LatentShape:
    """One block of latent attention of a model, over all ranks."""

    hidden: int
    heads: int
    nope_dim: int  # elements of a head's query and key that are not turned
    rope_dim: int  # and those that are
    value_dim: int  # elements of a head's value
    rank: int  # of the latent
    query_rank: int | None  # of what queries are computed from; None: from x
    scale: float  # of scores
    rope: Rope | None  # None for no positional encoding
    max_positions: int
    eps: float  # of the norm before the block
    latent_eps: float  # of the norms of the latent and of what queries are computed from
    style: str = "pairs"  # which elements are turned together (RotarySpec)
    bias: bool = False  # of the projections from x, and of the output's
    norm_offset: float = 0.0  # as of AttentionShape
    causal: bool = True
    name: ClassVar[str] = "self_attn"

    @property
    def query_dim(self) -> int:
        """Elements of a head's query and key."""
        return self.nope_dim + self.rope_dim

    def spec(self, **values: Any) -> LatentLayerSpec | SparseLatentLayerSpec:
        """What the layer is. values: all fields of a LatentHeadsSpec."""
        return LatentLayerSpec(**values)

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> LatentAttention:
        """As in BlockShape."""
        return LatentAttention(build, prefix, norm, self, tables)


class LatentAttention:
    """An AttentionBlock. norm: the input norm and its name, or None if x needs no norm. Raises ModelError."""

    def __init__(
        self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: LatentShape, tables: RotaryTable
    ) -> None:
        heads = build.shard(shape.heads, "the number of attention heads")
        linear = self._input(build, prefix, shape, heads)
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        self.query = self._query(build, prefix, shape, heads)
        latent = shape.rank + shape.rope_dim
        self.sizes = linear.spec.n - latent, latent
        columns = _rows(heads, shape.value_dim)
        output = WeightShard(f"{prefix}.o_proj", shape.hidden, shape.heads * shape.value_dim, columns=columns)
        self.output = Linear(build, [output], bias=shape.bias)
        latent_norm = Norm(shape.latent_eps).spec(shape.rank, build.dtype)
        self.spec = shape.spec(
            layer=len(build.mixers),
            num_heads=heads[1] - heads[0],
            nope_dim=shape.nope_dim,
            value_dim=shape.value_dim,
            scale=shape.scale,
            dtype=build.dtype,
            cache=build.latent_cache(shape.rank, shape.rope_dim),
            latent_norm=latent_norm,
            rotary=None if shape.rope is None else RotarySpec(shape.rope_dim, shape.rope.dim, shape.style),
        )
        weights = LateWeights()
        if shape.rope is not None:
            weights["cos_sin"] = tables.table(shape.rope, shape.max_positions)
        weights.parameters["latent_norm"] = norm_parameter(build, f"{prefix}.kv_a_layernorm", latent_norm)
        weights.parameters["kv_up"] = _kv_up(build, f"{prefix}.kv_b_proj", shape, heads)
        self.mixer = build.mixer(self.spec, weights)

    def _input(self, build: Build, prefix: str, shape: LatentShape, heads: Bounds) -> Linear:
        """The product of x: queries, or what they are computed from, then the latent."""
        latent = WeightShard(f"{prefix}.kv_a_proj_with_mqa", shape.rank + shape.rope_dim, shape.hidden)
        if shape.query_rank is not None:
            query = WeightShard(f"{prefix}.q_a_proj", shape.query_rank, shape.hidden)
        elif shape.bias:
            raise ModelError("attention_bias without q_lora_rank is not supported.")
        else:
            rows = _rows(heads, shape.query_dim)
            query = WeightShard(f"{prefix}.q_proj", shape.heads * shape.query_dim, shape.hidden, rows)
        return Linear(build, [query, latent], bias=shape.bias)

    def _query(
        self, build: Build, prefix: str, shape: LatentShape, heads: Bounds, others: Sequence[WeightShard] = ()
    ) -> NormLinear | None:
        """Norm and product of queries that are not computed from x. others: what the product has behind them."""
        if shape.query_rank is None:
            return None
        rows = _rows(heads, shape.query_dim)
        up = WeightShard(f"{prefix}.q_b_proj", shape.heads * shape.query_dim, shape.query_rank, rows)
        norm = Norm(shape.latent_eps, whole=True)
        return NormLinear(build, f"{prefix}.q_a_layernorm", norm, Linear(build, [up, *others]))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        queries, latent = projected.split(self.sizes, dim=-1)
        if self.query is not None:
            queries, _ = self.query(queries, None)
        plan = launch.plans[self.spec.layer]
        return self.mixer.fused(LatentInput(queries, latent), launch.positions, caches, plan), residual


def _kv_up(build: Build, name: str, shape: LatentShape, heads: Bounds) -> Parameter:
    """The weight of that name (LatentBackend), of this rank's heads; decoded if the checkpoint has it quantized."""
    dim = shape.nope_dim + shape.value_dim
    weight = WeightShard(name, shape.heads * dim, shape.rank, _rows(heads, dim)).weight
    build.weights.skip(name, _KV_UP)

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        by_head = raw["weight"].unflatten(0, (-1, dim))
        if into is None:
            return {"weight": by_head}
        into["weight"].copy_(by_head)
        return into

    part = build.weights.decoded(weight, build.dtype, "Linear")
    return build.register_parameter(Parameter({"weight": [part]}, prepare))


def _rows(heads: Bounds, dim: int) -> Bounds:
    return heads[0] * dim, heads[1] * dim
