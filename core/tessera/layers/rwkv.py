"""The two halves of an RWKV block: time mixing and channel mixing, both of which mix each token with the one before it
first. Channels are divided among the ranks; the mixing itself, before the products, is every rank's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.mlp import MLP
from tessera.layers.norm import Norm
from tessera.layers.rotary import Rope
from tessera.layers.state_mixer import StateMixer
from tessera.ops import SigmoidGateSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.quantization import Part
from tessera.platform.wkv import WKVInput


@dataclass(frozen=True)
class TimeMixingShape:
    """One such block of a model, over all ranks."""

    hidden: int
    channels: int
    eps: float  # of the norm before the block
    max_positions: int
    norm_offset: float = 0.0  # as of AttentionShape
    name: ClassVar[str] = "attention"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> TimeMixing:
        """As in BlockShape; the norm is before it, as a layer norm is."""
        assert norm is None
        return TimeMixing(build, prefix, self)


class TimeMixing:
    """An AttentionBlock without a norm."""

    def __init__(self, build: Build, prefix: str, shape: TimeMixingShape) -> None:
        wide, self.hidden = shape.channels, shape.hidden
        channels = build.shard(wide, "the number of channels of time mixing")
        self.shift = _shift(build, prefix, ("key", "value", "receptance"), shape.hidden)
        self.key, self.value, self.receptance = (
            Linear(build, [WeightShard(f"{prefix}.{name}", wide, shape.hidden, channels)])
            for name in ("key", "value", "receptance")
        )
        self.average = _average(build, prefix, wide, channels)
        number = channels[1] - channels[0]
        self.gate = build.ops.bind("sigmoid_gate", SigmoidGateSpec(number, build.dtype, number))
        self.output = Linear(build, [WeightShard(f"{prefix}.output", shape.hidden, wide, columns=channels)])

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        key, value, receptance = self.shift(x, launch, caches).split(self.hidden, dim=-1)
        mixed = self.average(WKVInput(self.key(key), self.value(value)), launch, caches)
        gated: Tensor = self.gate(mixed, self.receptance(receptance))
        return gated, x if residual is None else residual


class ChannelMixing:
    """shift() mixes tokens; of its result, the call makes this rank's partial sum for each token alone."""

    def __init__(self, build: Build, prefix: str, hidden: int, inner: int) -> None:
        self.hidden = hidden
        self.shift = _shift(build, prefix, ("key", "receptance"), hidden)
        self.mlp = MLP(build, f"{prefix}.key", f"{prefix}.value", hidden, inner, "relu2")
        # whole on every rank, as it multiplies partial sums
        self.receptance = Linear(build, [WeightShard(f"{prefix}.receptance", hidden, hidden)])
        self.gate = build.ops.bind("sigmoid_gate", SigmoidGateSpec(hidden, build.dtype, hidden))

    def __call__(self, shifted: Tensor) -> Tensor:
        key, receptance = shifted.split(self.hidden, dim=-1)
        result: Tensor = self.gate(self.mlp(key), self.receptance(receptance))
        return result


def _shift(build: Build, prefix: str, names: Sequence[str], hidden: int) -> StateMixer:
    parts = {"mix": [Part(f"{prefix}.time_mix_{name}", (1, 1, hidden)) for name in names]}
    return StateMixer(build, "token_shift", hidden, parts, ("last", (hidden, 1)), (("mixes", len(names)),))


def _average(build: Build, prefix: str, wide: int, channels: Bounds) -> StateMixer:
    stored = {"decay": "time_decay", "bonus": "time_first"}
    parts = {name: [Part(f"{prefix}.{own}", (wide,), channels)] for name, own in stored.items()}
    number = channels[1] - channels[0]
    return StateMixer(build, "wkv", number, parts, ("sums", (3, number)))
