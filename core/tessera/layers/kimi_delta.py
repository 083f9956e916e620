"""The block of Kimi delta attention: norm and fused input projection, a second product each for decays and gates, the
bound mixer, the output projection. Heads are divided among the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.layers.attention import LateWeights, PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear
from tessera.layers.rotary import Rope
from tessera.layers.state_weights import state_weights
from tessera.platform.attention import Caches, LayerSpec, StateSpec
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part


@dataclass(frozen=True)
class KimiDeltaShape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    head_dim: int  # elements of a query, a key and a value, and of what decays and gates are computed from
    kernel: int  # tokens that the convolution sees
    eps: float
    max_positions: int
    norm_offset: float = 0.0  # as of AttentionShape
    name: ClassVar[str] = "self_attn"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> KimiDelta:
        """As in BlockShape."""
        return KimiDelta(build, prefix, norm, self)


class KimiDelta:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: KimiDeltaShape) -> None:
        heads, dim = build.shard(shape.heads, "the number of heads of the delta net"), shape.head_dim
        number, wide, rows = heads[1] - heads[0], shape.heads * dim, (heads[0] * dim, heads[1] * dim)
        sources = [
            *(WeightShard(f"{prefix}.{name}_proj", wide, shape.hidden, rows) for name in "qkv"),
            WeightShard(f"{prefix}.b_proj", shape.heads, shape.hidden, heads),
            *(WeightShard(f"{prefix}.{name}_a_proj", dim, shape.hidden) for name in "fg"),
        ]
        linear = Linear(build, sources)
        self.sizes = 3 * number * dim, number, dim, dim
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        self.forget, self.gate = (
            Linear(build, [WeightShard(f"{prefix}.{name}_b_proj", wide, dim, rows)]) for name in "fg"
        )
        self.output = Linear(build, [WeightShard(f"{prefix}.o_proj", shape.hidden, wide, columns=rows)])
        state = ("conv", (3 * number * dim, shape.kernel - 1)), ("state", (number, dim, dim))
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="kimi_delta_attention",
            num_heads=number,
            num_kv_heads=number,
            head_dim=dim,
            scale=dim**-0.5,
            dtype=build.dtype,
            cache=StateSpec(state, "float32"),
            options=(("kernel", shape.kernel), ("eps", shape.eps)),
        )
        self.mixer = build.mixer(self.spec, _weights(build, prefix, shape, heads))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        mixed, beta, forget, gate = projected.split(self.sizes, dim=-1)
        joined = torch.cat([mixed, self.forget(forget), self.gate(gate), beta], dim=-1)
        return self.mixer.fused(joined, launch.positions, caches, launch.plans[self.spec.layer]), residual


def _weights(build: Build, prefix: str, shape: KimiDeltaShape, heads: Bounds) -> LateWeights:
    """Of the mixer."""
    wide, rows = shape.heads * shape.head_dim, (heads[0] * shape.head_dim, heads[1] * shape.head_dim)
    names = (f"{prefix}.{name}_conv1d.weight" for name in "qkv")
    parts = {
        "conv": [Part(name, (wide, 1, shape.kernel), rows) for name in names],
        "dt_bias": [Part(f"{prefix}.dt_bias", (wide,), rows)],
        "norm": [Part(f"{prefix}.o_norm.weight", (shape.head_dim,), fill=1.0)],
        "a_log": [Part(f"{prefix}.A_log", (1, 1, shape.heads, 1))],
    }
    return state_weights(build, parts, {"a_log": heads})
