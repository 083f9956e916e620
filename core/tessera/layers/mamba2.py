"""The block of a Mamba 2: norm and fused input projection, the bound mixer, the output projection. Groups, with the
heads of each, are divided among the ranks. If they do not divide evenly, every rank computes all of them, and then the
output projection of its part of the result."""

from __future__ import annotations

import math
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
class Mamba2Shape:
    """One such block of a model, over all ranks."""

    hidden: int
    heads: int
    head_dim: int
    groups: int  # of consecutive heads, which share B and C
    state_dim: int  # elements of B, and of C, of a group
    kernel: int  # tokens that the convolution sees
    eps: float
    max_positions: int
    bias: bool = False  # of the input projection
    output_bias: bool = False
    conv_bias: bool = True
    normed: bool = True  # whether the result is normed
    gate_first: bool = True  # the norm is behind the gate, not before it
    # of what the input projection returns for gates, inputs, B, C and dt, bias included
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    step_limits: tuple[float, float] = (0.0, math.inf)  # of dt
    norm_offset: float = 0.0  # of the norm before the block
    name: ClassVar[str] = "mamba"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    @property
    def multiplied(self) -> bool:
        return any(one != 1.0 for one in self.multipliers)

    @property
    def inner(self) -> int:
        """Elements of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: inputs, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> Mamba2:
        """As in BlockShape."""
        return Mamba2(build, prefix, norm, self)


@dataclass(frozen=True)
class _Share:
    """A rank's part of a block."""

    shape: Mamba2Shape
    groups: Bounds

    @property
    def heads(self) -> Bounds:
        return self._of_groups(self.shape.heads // self.shape.groups)

    @property
    def inner(self) -> Bounds:
        return self._of_groups(self.shape.inner // self.shape.groups)

    @property
    def state(self) -> Bounds:
        """Elements of B, and of C."""
        return self._of_groups(self.shape.state_dim)

    def _of_groups(self, size: int) -> Bounds:
        """size: of a group."""
        return self.groups[0] * size, self.groups[1] * size

    def channels(self, first: int = 0) -> list[Bounds]:
        """Rows of inputs, B and C, from `first` on."""
        wide = self.shape.groups * self.shape.state_dim
        starts = first, first + self.shape.inner, first + self.shape.inner + wide
        parts = self.inner, self.state, self.state
        return [(start + part[0], start + part[1]) for start, part in zip(starts, parts, strict=True)]

    def projection(self) -> list[Bounds]:
        """Rows of gates, inputs, B, C and dt."""
        shape = self.shape
        if self.groups == (0, shape.groups):
            return [(0, shape.inner + shape.channels + shape.heads)]
        return self.parts()

    def parts(self) -> list[Bounds]:
        """The same, each of the five by itself."""
        last = self.shape.inner + self.shape.channels
        return [self.inner, *self.channels(self.shape.inner), (last + self.heads[0], last + self.heads[1])]


class Mamba2:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: Mamba2Shape) -> None:
        divided = shape.groups % build.group.size == 0
        share = _Share(shape, build.shard(shape.groups, "groups") if divided else (0, shape.groups))
        rows = shape.inner + shape.channels + shape.heads
        sources = [WeightShard(f"{prefix}.in_proj", rows, shape.hidden, part) for part in share.projection()]
        linear = Linear(build, sources, bias=shape.bias)
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        columns = build.shard(shape.inner, "the inner size of the mamba mixer")
        output = WeightShard(f"{prefix}.out_proj", shape.hidden, shape.inner, columns=columns)
        self.output = Linear(build, [output], bias=shape.output_bias)
        self.columns = None if share.inner == columns else slice(*columns)
        self.spec = _spec(build, share)
        self.mixer = build.mixer(self.spec, _weights(build, prefix, share))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        mixed, residual = self.input(x, residual)
        result = self.mixer.fused(mixed, launch.positions, caches, launch.plans[self.spec.layer])
        return result if self.columns is None else result[:, self.columns], residual


def _spec(build: Build, share: _Share) -> LayerSpec:
    shape, (first, last) = share.shape, share.heads
    heads, groups = last - first, share.groups[1] - share.groups[0]
    channels = heads * shape.head_dim + 2 * groups * shape.state_dim
    state = ("conv", (channels, shape.kernel - 1)), ("state", (heads, shape.head_dim, shape.state_dim))
    limits = zip(("dt_min", "dt_max"), shape.step_limits, (0.0, math.inf), strict=True)
    return LayerSpec(
        layer=len(build.mixers),
        kind="mamba2",
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=shape.head_dim,
        scale=1.0,
        dtype=build.dtype,
        cache=StateSpec(state, "float32"),
        options=(
            ("state_dim", shape.state_dim),
            ("kernel", shape.kernel),
            ("eps", shape.eps),
            *((name, limit) for name, limit, none in limits if limit != none),
            *([] if shape.normed else [("normed", 0.0)]),
            *([] if shape.gate_first else [("gate_first", 0.0)]),
            *([("multiplied", 1.0)] if shape.multiplied else []),
        ),
    )


def _weights(build: Build, prefix: str, share: _Share) -> LateWeights:
    shape, rows = share.shape, share.channels()
    whole = shape.channels, 1, shape.kernel
    joins = {
        "conv": [Part(f"{prefix}.conv1d.weight", whole, part) for part in rows],
        "a_log": [Part(f"{prefix}.A_log", (shape.heads,), share.heads)],
        "d": [Part(f"{prefix}.D", (shape.heads,), share.heads)],
        "dt_bias": [Part(f"{prefix}.dt_bias", (shape.heads,), share.heads)],
    }
    if shape.normed:
        joins["norm"] = [Part(f"{prefix}.norm.weight", (shape.inner,), share.inner, fill=1.0)]
    if shape.conv_bias:
        joins["conv_bias"] = [Part(f"{prefix}.conv1d.bias", whole[:1], part) for part in rows]
    weights = state_weights(build, joins)
    if not shape.conv_bias:
        channels = sum(stop - start for start, stop in rows)
        weights["conv_bias"] = torch.zeros(channels, device=build.device.target)
    if shape.multiplied:
        each = zip(share.parts(), shape.multipliers, strict=True)
        of_all = [torch.full((stop - start,), one) for (start, stop), one in each]
        weights["multipliers"] = torch.cat(of_all).to(build.device.target)
    return weights
