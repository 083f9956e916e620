"""The block of a gated delta net: norm and fused input projection, the bound mixer, the output projection. Key heads,
with the value heads that share each, are divided among the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
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
class DeltaNetShape:
    """One such block of a model, over all ranks."""

    hidden: int
    key_heads: int
    value_heads: int  # a multiple of key_heads; consecutive ones share a key head
    key_dim: int  # elements of a head of queries and keys
    value_dim: int  # elements of a head of values
    kernel: int  # tokens that the convolution sees
    eps: float  # of the norm before the block
    max_positions: int
    norm_offset: float  # of the norm before the block
    layout: DeltaNetLayout  # how the checkpoint stores the weights
    result_eps: float  # of the norm of the result
    beta_scale: float = 1.0  # multiplies beta; up to 2, beyond which states would grow
    name: ClassVar[str] = "linear_attn"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    @property
    def shared(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    @property
    def channels(self) -> tuple[int, int, int]:
        """Elements of queries, keys and values."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> DeltaNet:
        """As in BlockShape."""
        return DeltaNet(build, prefix, norm, self)


class DeltaNetLayout(ABC):
    """How a checkpoint stores a block's weights, and what it calls them."""

    output: ClassVar[str] = "out_proj"
    norm: ClassVar[str] = "norm"
    # of queries, keys and values, or one for all of them
    convolutions: ClassVar[tuple[str, ...]] = ("conv1d",)

    @abstractmethod
    def sources(self, prefix: str, shape: DeltaNetShape, heads: Bounds) -> list[WeightShard]:
        """The shards of some key heads, and of what belongs to them, in the order queries, keys, values, gates, b,
        a."""


class ByKind(DeltaNetLayout):
    """Queries, keys and values one after the other in one tensor; gates, b and a in three more (Qwen 3.5)."""

    def sources(self, prefix: str, shape: DeltaNetShape, heads: Bounds) -> list[WeightShard]:
        start, stop = heads
        keys, _, values = shape.channels
        of_value = shape.shared * shape.value_dim
        rows = [
            (start * shape.key_dim, stop * shape.key_dim),
            (keys + start * shape.key_dim, keys + stop * shape.key_dim),
            (2 * keys + start * of_value, 2 * keys + stop * of_value),
        ]
        small = start * shape.shared, stop * shape.shared
        return [
            *(WeightShard(f"{prefix}.in_proj_qkv", 2 * keys + values, shape.hidden, part) for part in rows),
            WeightShard(f"{prefix}.in_proj_z", values, shape.hidden, (start * of_value, stop * of_value)),
            *(WeightShard(f"{prefix}.in_proj_{name}", shape.value_heads, shape.hidden, small) for name in "ba"),
        ]


class ByKeyHead(DeltaNetLayout):
    """For each key head its query, key, values and gates in one tensor, and its b and a in another (Qwen 3 Next)."""

    def sources(self, prefix: str, shape: DeltaNetShape, heads: Bounds) -> list[WeightShard]:
        of_value = shape.shared * shape.value_dim
        wide = _grouped(f"{prefix}.in_proj_qkvz", shape, heads, (shape.key_dim, shape.key_dim, of_value, of_value))
        return [*wide, *_grouped(f"{prefix}.in_proj_ba", shape, heads, (shape.shared, shape.shared))]


class Separate(DeltaNetLayout):
    """A tensor for each of them, and for each convolution (OLMo Hybrid)."""

    output = "o_proj"
    norm = "o_norm"
    convolutions = ("q_conv1d", "k_conv1d", "v_conv1d")

    def sources(self, prefix: str, shape: DeltaNetShape, heads: Bounds) -> list[WeightShard]:
        key, value = shape.key_dim, shape.shared * shape.value_dim
        of_head = {"q": key, "k": key, "v": value, "g": value, "b": shape.shared, "a": shape.shared}
        return [
            WeightShard(f"{prefix}.{name}_proj", shape.key_heads * n, shape.hidden, (heads[0] * n, heads[1] * n))
            for name, n in of_head.items()
        ]


def _grouped(name: str, shape: DeltaNetShape, heads: Bounds, sizes: tuple[int, ...]) -> list[WeightShard]:
    """The shards of a tensor that has, for each key head, so many rows of each kind: kind by kind."""
    each = sum(sizes)
    starts = [sum(sizes[:kind]) for kind in range(len(sizes))]
    rows = chain.from_iterable(
        ((head * each + start, head * each + start + size) for head in range(*heads))
        for start, size in zip(starts, sizes, strict=True)
    )
    return [WeightShard(name, shape.key_heads * each, shape.hidden, part) for part in rows]


class DeltaNet:
    """An AttentionBlock. norm: as in BlockShape."""

    def __init__(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, shape: DeltaNetShape) -> None:
        heads = build.shard(shape.key_heads, "the number of key heads of the delta net")
        values = heads[0] * shape.shared, heads[1] * shape.shared
        linear = Linear(build, shape.layout.sources(prefix, shape, heads))
        self.input = PlainInput(linear) if norm is None else NormLinear(build, *norm, linear)
        wide = shape.value_heads * shape.value_dim
        columns = values[0] * shape.value_dim, values[1] * shape.value_dim
        self.output = Linear(
            build, [WeightShard(f"{prefix}.{shape.layout.output}", shape.hidden, wide, columns=columns)]
        )
        key_heads, value_heads = heads[1] - heads[0], values[1] - values[0]
        channels = 2 * key_heads * shape.key_dim + value_heads * shape.value_dim
        state = ("conv", (channels, shape.kernel - 1)), ("state", (value_heads, shape.key_dim, shape.value_dim))
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind="gated_delta_net",
            num_heads=value_heads,
            num_kv_heads=key_heads,
            head_dim=shape.value_dim,
            scale=shape.key_dim**-0.5,
            dtype=build.dtype,
            cache=StateSpec(state, "float32"),
            options=(
                ("key_dim", shape.key_dim),
                ("kernel", shape.kernel),
                ("eps", shape.result_eps),
                ("beta_scale", shape.beta_scale),
            ),
        )
        self.mixer = build.mixer(self.spec, _weights(build, prefix, shape, heads, values))

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        mixed, residual = self.input(x, residual)
        return self.mixer.fused(mixed, launch.positions, caches, launch.plans[self.spec.layer]), residual


def _weights(build: Build, prefix: str, shape: DeltaNetShape, heads: Bounds, values: Bounds) -> LateWeights:
    """Of the mixer."""
    parts = {
        "conv": _convolutions(prefix, shape, heads),
        "a_log": [Part(f"{prefix}.A_log", (shape.value_heads,), values)],
        "dt_bias": [Part(f"{prefix}.dt_bias", (shape.value_heads,), values)],
        "norm": [Part(f"{prefix}.{shape.layout.norm}.weight", (shape.value_dim,), fill=1.0)],
    }
    return state_weights(build, parts)


def _convolutions(prefix: str, shape: DeltaNetShape, heads: Bounds) -> list[Part]:
    """Of the queries, keys and values of some key heads: of a tensor each, or one after the other in one tensor."""
    names, widths = shape.layout.convolutions, shape.channels
    joined = len(names) == 1
    starts = [sum(widths[:kind]) if joined else 0 for kind in range(len(widths))]
    parts = []
    for name, start, width in zip(names * 3 if joined else names, starts, widths, strict=True):
        n, whole = width // shape.key_heads, sum(widths) if joined else width
        rows = start + heads[0] * n, start + heads[1] * n
        parts.append(Part(f"{prefix}.{name}.weight", (whole, 1, shape.kernel), rows))
    return parts
