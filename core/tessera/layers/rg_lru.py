"""The block of a real-gated linear recurrent unit: norm and fused projection of gates and inputs, the bound mixer, the
output projection. Heads, which share the products of its inner gates, are divided among the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
class RGLRUShape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    head_dim: int  # channels that share the products of their inner gates
    kernel: int  # tokens that the convolution sees
    eps: float  # of the norm before the block
    max_positions: int
    norm_offset: float = 0.0  # as of AttentionShape
    name: ClassVar[str] = "temporal_block"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> RGLRU:
        """As in BlockShape."""
        return RGLRU(build, prefix, norm, self)


class RGLRU:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: RGLRUShape) -> None:
        hidden, wide = shape.hidden, shape.channels
        heads = build.shard(shape.heads, "the number of heads of the recurrent unit")
        channels = heads[0] * shape.head_dim, heads[1] * shape.head_dim
        inputs = [WeightShard(f"{prefix}.{name}", wide, hidden, channels) for name in ("linear_y", "linear_x")]
        linear = Linear(build, inputs, bias=True)
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        output = WeightShard(f"{prefix}.linear_out", hidden, wide, columns=channels)
        self.output = Linear(build, [output], bias=True)
        number = channels[1] - channels[0]
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="rg_lru",
            num_heads=heads[1] - heads[0],
            num_kv_heads=heads[1] - heads[0],
            head_dim=shape.head_dim,
            scale=1.0,
            dtype=build.dtype,
            cache=StateSpec((("conv", (number, shape.kernel - 1)), ("state", (number,))), "float32"),
            options=(("kernel", shape.kernel),),
        )
        self.mixer = build.mixer(self.spec, _weights(build, prefix, shape, heads, channels))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        return self.mixer.fused(projected, launch.positions, caches, launch.plans[self.spec.layer]), residual


def _weights(build: Build, prefix: str, shape: RGLRUShape, heads: Bounds, channels: Bounds) -> LateWeights:
    conv, unit, one = f"{prefix}.conv_1d", f"{prefix}.rg_lru", (shape.heads, shape.head_dim)
    parts = {
        "conv": [Part(f"{conv}.weight", (shape.channels, 1, shape.kernel), channels)],
        "conv_bias": [Part(f"{conv}.bias", (shape.channels,), channels)],
        "a_param": [Part(f"{unit}.recurrent_param", (shape.channels,), channels)],
    }
    for name, stored in (("input_gate", "input_gate"), ("recurrence_gate", "recurrent_gate")):
        parts[name] = [Part(f"{unit}.{stored}_weight", (*one, shape.head_dim), heads)]
        parts[f"{name}_bias"] = [Part(f"{unit}.{stored}_bias", one, heads)]
    return state_weights(build, parts)
