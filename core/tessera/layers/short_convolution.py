"""The block of a gated short convolution: norm and fused input projection, the bound mixer, the output projection.
Channels are divided among the ranks."""

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
class ShortConvolutionShape:
    """One such block of a model, over all ranks. It has as many channels as hidden elements."""

    hidden: int
    kernel: int  # tokens that the convolution sees
    bias: bool  # of the convolution and of both projections
    eps: float  # of the norm before the block
    max_positions: int
    norm_offset: float = 0.0  # as of AttentionShape
    name: ClassVar[str] = "conv"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> ShortConvolution:
        """As in BlockShape."""
        return ShortConvolution(build, prefix, norm, self)


class ShortConvolution:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: ShortConvolutionShape) -> None:
        hidden = shape.hidden
        channels = build.shard(hidden, "the number of channels of the convolution")
        linear = Linear(build, _inputs(f"{prefix}.in_proj", hidden, channels), bias=shape.bias)
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        output = WeightShard(f"{prefix}.out_proj", hidden, hidden, columns=channels)
        self.output = Linear(build, [output], bias=shape.bias)
        number = channels[1] - channels[0]
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="short_convolution",
            num_heads=1,
            num_kv_heads=1,
            head_dim=number,
            scale=1.0,
            dtype=build.dtype,
            cache=StateSpec((("conv", (number, shape.kernel - 1)),), "float32"),
            options=(("kernel", shape.kernel), ("bias", shape.bias)),
        )
        self.mixer = build.mixer(self.spec, _weights(build, f"{prefix}.conv", shape, channels))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        mixed, residual = self.input(x, residual)
        return self.mixer.fused(mixed, launch.positions, caches, launch.plans[self.spec.layer]), residual


def _inputs(name: str, hidden: int, channels: Bounds) -> list[WeightShard]:
    """The shards of b, c and x, which the checkpoint has one after the other in one tensor."""
    starts = 0, hidden, 2 * hidden
    return [WeightShard(name, 3 * hidden, hidden, (start + channels[0], start + channels[1])) for start in starts]


def _weights(build: Build, name: str, shape: ShortConvolutionShape, channels: Bounds) -> LateWeights:
    parts = {"conv": [Part(f"{name}.weight", (shape.hidden, 1, shape.kernel), channels)]}
    if shape.bias:
        parts["bias"] = [Part(f"{name}.bias", (shape.hidden,), channels)]
    return state_weights(build, parts)
