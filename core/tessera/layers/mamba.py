"""The block of a Mamba: norm and fused input projection, the convolution, the projections of dt, B and C, the scan, the
output projection. Channels are divided among the ranks; dt, B and C, which are projected from all of them, are summed
over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tessera.layers.attention import PlainInput, RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear, norm_parameter
from tessera.layers.rotary import Rope
from tessera.layers.state_mixer import StateMixer
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part
from tessera.platform.selective_scan import ScanInput


@dataclass(frozen=True)
class SelectionNorms:
    """RMS norms of dt before its second projection, of B and of C."""

    eps: float
    weighted: bool  # whether the checkpoint has weights of them


@dataclass(frozen=True)
class MambaShape:
    """One such block of a model, over all ranks."""

    hidden: int
    inner: int  # channels
    rank: int  # elements that the steps of all channels are projected from
    state_dim: int  # elements of B, and of C, and of each channel's state
    kernel: int  # tokens that the convolution sees
    eps: float
    max_positions: int
    bias: bool = False  # of the input and output projections
    conv_bias: bool = True
    norms: SelectionNorms | None = None  # None: dt, B and C are not normed
    norm_offset: float = 0.0  # of the norm before the block
    name: ClassVar[str] = "mamba"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> Mamba:
        """As in BlockShape."""
        return Mamba(build, prefix, norm, self)


class Mamba:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: MambaShape) -> None:
        inner, hidden = shape.inner, shape.hidden
        channels = build.shard(inner, "the number of channels of mamba")
        self.channels = channels[1] - channels[0]
        rows = channels, (inner + channels[0], inner + channels[1])  # of inputs and gates
        linear = Linear(
            build, [WeightShard(f"{prefix}.in_proj", 2 * inner, hidden, part) for part in rows], bias=shape.bias
        )
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        self.convolution = channel_convolution(build, prefix, inner, shape.kernel, channels, bias=shape.conv_bias)
        self.selection = Selection(build, prefix, shape, channels)
        self.scan = selective_scan(
            build,
            self.channels,
            shape.state_dim,
            a_log=Part(f"{prefix}.A_log", (inner, shape.state_dim), channels),
            d=Part(f"{prefix}.D", (inner,), channels),
            dt_bias=Part(f"{prefix}.dt_proj.bias", (inner,), channels),
        )
        output = WeightShard(f"{prefix}.out_proj", hidden, inner, columns=channels)
        self.output = Linear(build, [output], bias=shape.bias)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        projected, residual = self.input(x, residual)
        inputs, gates = projected.split(self.channels, dim=-1)
        inputs = self.convolution(inputs, launch, caches)
        return self.scan(ScanInput(inputs, gates, *self.selection(inputs)), launch, caches), residual


class Selection:
    """Projects dt, B and C from what the convolution returns."""

    def __init__(self, build: Build, prefix: str, shape: MambaShape, channels: Bounds) -> None:
        self.sizes = shape.rank, shape.state_dim, shape.state_dim
        joined = WeightShard(f"{prefix}.x_proj", sum(self.sizes), shape.inner, columns=channels)
        self.linear, self.complete = Linear(build, [joined]), build.group.all_reduce
        names = (f"{prefix}.{name}_layernorm" for name in ("dt", "b", "c"))
        self.norms = [_norm(build, name, n, shape.norms) for name, n in zip(names, self.sizes, strict=True)]
        # its bias is added by the scan
        self.steps = Linear(build, [WeightShard(f"{prefix}.dt_proj", shape.inner, shape.rank, channels)])

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.complete(self.linear(inputs)).split(self.sizes, dim=-1)
        dt, b, c = (norm(part) for norm, part in zip(self.norms, parts, strict=True))
        return self.steps(dt), b, c


def _norm(build: Build, name: str, n: int, norms: SelectionNorms | None) -> Any:
    """One of a selection's norms, as a call."""
    if norms is None:
        return _as_it_is
    spec = Norm(norms.eps).spec(n, build.dtype)
    call = build.ops.bind("rms_norm", spec)
    if norms.weighted:
        parameter = norm_parameter(build, name, spec)
        return lambda x: call(x, parameter.tensor)
    ones = torch.ones(n, dtype=torch_dtype(build.dtype), device=build.device.target)
    weight = build.ops.prepare("rms_norm", spec, {"weight": ones}, None)["weight"]
    return lambda x: call(x, weight)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def channel_convolution(
    build: Build, prefix: str, inner: int, kernel: int, channels: Bounds, *, bias: bool
) -> StateMixer:
    """channels: this rank's, of `inner`."""
    parts = {"conv": [Part(f"{prefix}.conv1d.weight", (inner, 1, kernel), channels)]}
    if bias:
        parts["bias"] = [Part(f"{prefix}.conv1d.bias", (inner,), channels)]
    number = channels[1] - channels[0]
    options = ("kernel", kernel), ("bias", bias)
    return StateMixer(build, "mamba_convolution", number, parts, ("conv", (number, kernel - 1)), options)


def selective_scan(build: Build, channels: int, state_dim: int, *, a_log: Part, d: Part, dt_bias: Part) -> StateMixer:
    parts = {"a_log": [a_log], "d": [d], "dt_bias": [dt_bias]}
    state = "state", (channels, state_dim)
    return StateMixer(build, "selective_scan", channels, parts, state, (("state_dim", state_dim),))
