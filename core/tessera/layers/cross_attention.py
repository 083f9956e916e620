"""The block of cross attention: a query of each token over the keys and values of what an encoder made, which are
computed and written once, when a row begins. Heads are sharded over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.norm import Norm, NormByHead
from tessera.layers.qkv import Apart, Heads, kv_heads_of
from tessera.platform.attention import Caches, CrossLayer, CrossSpec, LayerSpec
from tessera.platform.launch import Launch


@dataclass(frozen=True)
class CrossShape:
    """The cross attention of one layer, over all ranks."""

    hidden: int
    heads: int
    head_dim: int
    # The most positions of an encoder.
    length: int
    # What the checkpoint calls its projections.
    layout: Apart
    bias: bool
    # Of scores; None: that of the head's size.
    scale: float | None = None
    # Whether the last of them has one; None: as the others.
    output_bias: bool | None = None
    # Of keys and values; None: as many as of queries.
    kv_heads: int | None = None
    # Of the RMS norms over each head of queries and of keys; None: there are none.
    head_norm: Norm | None = None
    # Whether each token sees a range of the positions (LayerSpec.kind).
    ranged: bool = False


class CrossAttention:
    """An AttentionBlock whose input is normed. Keys and values are kept in the model's dtype. prefix: of its weights in
    the checkpoint."""

    def __init__(self, build: Build, prefix: str, shape: CrossShape) -> None:
        own = build.shard(shape.heads, "the number of attention heads")
        kv_heads = shape.heads if shape.kv_heads is None else shape.kv_heads
        kept = kv_heads_of(build, kv_heads)
        self.heads, self.kv_heads, self.head_dim = own[1] - own[0], kept[1] - kept[0], shape.head_dim
        heads = Heads(shape.heads, kv_heads, shape.head_dim, own, kept)
        query, *keys_values = shape.layout.sources(prefix, shape.hidden, heads)
        self.query: Callable[[Tensor], Tensor] = Linear(build, [query], bias=shape.bias)
        self.keys_values = Linear(build, keys_values, bias=shape.bias)
        wide = shape.heads * shape.head_dim
        out = WeightShard(f"{prefix}.{shape.layout.output}", shape.hidden, wide, columns=heads.rows(own))
        self.output = Linear(build, [out], bias=shape.bias if shape.output_bias is None else shape.output_bias)
        self.norms: tuple[NormByHead, NormByHead] | None = None  # of queries and of keys
        if shape.head_norm is not None:
            self.norms = (
                NormByHead(build, f"{prefix}.q_norm", self.heads, shape.head_dim, shape.head_norm),
                NormByHead(build, f"{prefix}.k_norm", self.kv_heads, shape.head_dim, shape.head_norm),
            )
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="ranged_cross_attention" if shape.ranged else "cross_attention",
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=shape.head_dim,
            scale=shape.head_dim**-0.5 if shape.scale is None else shape.scale,
            dtype=build.dtype,
            cache=CrossSpec(self.kv_heads, shape.head_dim, build.dtype, length=shape.length),
        )
        self.mixer = build.mixer(self.spec, {})
        # As it is bound: what is captured are the calls of `mixer`.
        self.bound = build.mixers[-1].mixer

    def write(self, states: Tensor, launch: Launch, caches: Caches) -> Tensor:
        """Computes and keeps the keys and values of what the encoders made of rows that begin in this launch. states
        [N, hidden], as long as the slots of the cache group. Returns the keys [N, Hk, D]."""
        assert isinstance(self.bound, CrossLayer), "the contract of cross_attention"
        k, v = self.keys_values(states).view(len(states), 2, self.kv_heads, self.head_dim).unbind(1)
        if self.norms is not None:
            k = self.norms[1](k.flatten(1)).view(k.shape)
        self.bound.write(k, v, caches, launch.plans[self.spec.layer])
        return k

    def __call__(self, x: Tensor, residual: Tensor, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        q = self.query(x)
        if self.norms is not None:
            q = self.norms[0](q)
        return self.mixer.fused(q, launch.positions, caches, launch.plans[self.spec.layer]), residual
