"""The block of a Mamba with heads (arXiv:2405.16712): norm and fused input projection, the convolution, the projections
of dt, B and C and the scan of each head, the output projection. Heads, which have dt, B and C of their own, are divided
among the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from tessera.layers.attention import PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Linear, Products, WeightShard
from tessera.layers.mamba import channel_convolution, selective_scan
from tessera.layers.norm import Norm, NormLinear
from tessera.layers.rotary import Rope
from tessera.ops import LinearSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part, Unpacking
from tessera.platform.selective_scan import ScanInput

_SMALL = "the projections of dt, B and C are small"


@dataclass(frozen=True)
class MultiHeadMambaShape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    head_dim: int  # channels of a head
    rank: int  # elements that the steps of a head's channels are projected from
    state_dim: int  # elements of B, and of C, and of each channel's state
    kernel: int  # tokens that the convolution sees
    eps: float
    max_positions: int
    bias: bool = False  # of the input and output projections
    conv_bias: bool = True
    name: ClassVar[str] = "mamba"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None
    norm_offset: ClassVar[float] = 0.0  # of the norm before the block

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> MultiHeadMamba:
        """As in BlockShape."""
        return MultiHeadMamba(build, prefix, norm, self)


class MultiHeadMamba:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: MultiHeadMambaShape) -> None:
        heads = build.shard(shape.heads, "the number of heads of mamba")
        inner, self.head_dim = shape.heads * shape.head_dim, shape.head_dim
        channels = heads[0] * shape.head_dim, heads[1] * shape.head_dim
        rows = 2 * channels[0], 2 * channels[1]  # each channel's input, and behind it its gate
        linear = Linear(build, [WeightShard(f"{prefix}.in_proj", 2 * inner, shape.hidden, rows)], bias=shape.bias)
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        self.convolution = channel_convolution(build, prefix, inner, shape.kernel, channels, bias=shape.conv_bias)
        self.heads = [MambaHead(build, prefix, shape, head) for head in range(*heads)]
        output = WeightShard(f"{prefix}.out_proj", shape.hidden, inner, columns=channels)
        self.output = Linear(build, [output], bias=shape.bias)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        inputs, gates = projected.unflatten(-1, (-1, 2)).movedim(-1, 0).contiguous()
        inputs = self.convolution(inputs, launch, caches)
        parts = zip(self.heads, *(one.split(self.head_dim, dim=-1) for one in (inputs, gates)), strict=True)
        return torch.cat([head(own, gate, launch, caches) for head, own, gate in parts], dim=-1), residual


class MambaHead:
    """Projects dt, B and C of a head from what the convolution returns of it, and scans it."""

    def __init__(self, build: Build, prefix: str, shape: MultiHeadMambaShape, head: int) -> None:
        channels, self.sizes = shape.head_dim, (shape.rank, shape.state_dim, shape.state_dim)

        def part(name: str, *sizes: int) -> Part:
            """The head's, of a tensor that has those of all heads."""
            unpacking = Unpacking(_only, sizes[0], prod(sizes))
            return Part(f"{prefix}.{name}", (shape.heads, *sizes), (head, head + 1), unpacking=unpacking)

        def product(name: str, n: int, k: int) -> Products:
            return Products(build, LinearSpec(n, k, build.dtype), {"weight": [part(name, n, k)]}, keep=_SMALL)

        self.joined = product("x_proj_weight", sum(self.sizes), channels)
        self.steps = product("dt_proj_weight", channels, shape.rank)
        self.scan = selective_scan(
            build,
            channels,
            shape.state_dim,
            a_log=part("A_log", channels, shape.state_dim),
            d=part("D", channels),
            dt_bias=part("dt_proj_bias", channels),
        )

    def __call__(self, inputs: Tensor, gates: Tensor, launch: Launch, caches: Caches) -> Tensor:
        dt, b, c = self.joined(inputs).split(self.sizes, dim=-1)
        return self.scan(ScanInput(inputs, gates, self.steps(dt), b, c), launch, caches)


def _only(stored: Tensor) -> Tensor:
    return stored[0]
