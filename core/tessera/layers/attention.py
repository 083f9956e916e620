"""The attention block: norm and fused input projection, the bound mixer, the output projection. Heads are sharded over
the ranks."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tessera.errors import MemoryBudgetError
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, Linear, WeightShard
from tessera.layers.norm import Norm, NormLinear, norm_parameter
from tessera.layers.qkv import APART, Heads, QKVLayout, kv_heads_of
from tessera.layers.rotary import AxisTable, Rope, cos_sin
from tessera.layers.weights import Parameter
from tessera.ops import NormSpec, QKNormSpec, RotarySpec, SigmoidGateSpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches, LayerSpec
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed
from tessera.platform.quantization import KV_FP8, Part


class AttentionBlock(Protocol):
    """(x, residual) -> (mixed, residual); output then maps mixed to this rank's partial sum. The returned residual is
    what the output is added to: x if there was none."""

    @property
    def output(self) -> Callable[[Tensor], Tensor]: ...

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]: ...


AttentionInput = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Norm and projection, or the projection alone: (x, residual) -> (queries, keys and values, residual)."""


class BlockShape(Protocol):
    """The shape of a model's attention blocks of some kind."""

    @property
    def hidden(self) -> int: ...

    @property
    def rope(self) -> Rope | None: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def eps(self) -> float: ...

    @property
    def norm_offset(self) -> float: ...

    @property
    def causal(self) -> bool: ...

    @property
    def name(self) -> str:
        """Of the block's weights in those of a layer, in most checkpoints."""

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> AttentionBlock:
        """A block of this shape. prefix: of its weights in the checkpoint. norm: the input norm and its name, or None
        if x needs no norm."""


@dataclass(frozen=True)
class Temperature:
    """What queries are multiplied by: 1 in the first `period` positions, and with each further `period` more, so that
    attention over long texts stays sharp. Scalable-Softmax, arXiv:2501.19399, as in Llama 4."""

    period: float
    weight: float  # of the logarithm of the number of periods

    def table(self, positions: int, device: torch.device) -> Tensor:
        """[positions, 1] float32"""
        periods = torch.floor(torch.arange(1, positions + 1, dtype=torch.float32, device=device) / self.period)
        return (torch.log1p(periods) * self.weight + 1.0)[:, None]


@dataclass(frozen=True)
class AttentionShape:
    """One attention block of a model, over all ranks."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None  # None for no positional encoding
    max_positions: int
    eps: float
    window: int | None = None  # tokens a query attends to; None for all
    chunk: int | None = None  # tokens of a chunk, if a query attends to its own alone (LayerSpec.chunk)
    softcap: float | None = None  # of the scores
    bias: bool = False
    output_bias: bool = False
    head_norm: bool = False  # queries and keys are normalized per head
    norm_names: tuple[str, str] | None = ("q_norm", "k_norm")  # of their norms; None: those have no weights
    whole_norm: bool = False  # queries and keys are normalized over all heads
    norm_offset: float = 0.0  # added to norm weights
    causal: bool = True  # False: each token sees all of its text, and nothing is kept for later steps
    relative_reach: int = 0  # distances that a bias of scores tells apart (LayerSpec.relative_reach)
    lookahead: bool = False  # tokens may see some that come after them (AHEAD)
    slopes: tuple[float, ...] = ()  # of all heads of queries, if scores have linear biases (LayerSpec.slopes)
    style: str = "half"  # which elements are turned together (RotarySpec)
    temperature: Temperature | None = None  # what queries are multiplied by
    clip: float | None = None  # largest absolute number in queries, keys and values
    layout: QKVLayout = APART  # how the checkpoint stores q, k and v
    head_gate: str = ""  # of the projection to one number per head, whose sigmoid its result is multiplied by; "": none
    sinks: bool = False  # each head has one more score, without a value (LayerSpec.sinks)
    gated: bool = False  # the result is multiplied by the sigmoid of as many gates, which q's projection has too
    inputs: int | None = None  # elements of the input; None: as many as of the result
    name: ClassVar[str] = "self_attn"

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> Attention:
        """As in BlockShape."""
        return Attention(build, prefix, norm, self, tables)


TABLE_BYTES = 6
"""For each element of a rotary table while it is made: itself, and half as many angles, in float32."""
_FACTOR_BYTES = 8
"""For each factor of a Temperature while it is made: itself, and what it is computed from."""


class RotaryTable:
    """What layers look up by position: cos and sin of each Rope, and the factors of each Temperature, computed once for
    all layers that use it. Raises MemoryBudgetError for more positions than there is memory for, which config.json may
    ask for by one number."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.tables: dict[tuple[Rope | Temperature, int], Tensor] = {}

    def temperature(self, temperature: Temperature, positions: int) -> Tensor:
        """As Temperature.table()."""
        key = (temperature, positions)
        if key not in self.tables:
            host = self._host("table of factors of queries", _FACTOR_BYTES, positions)
            self.tables[key] = temperature.table(positions, host).to(self.build.device.target)
        return self.tables[key]

    def table(self, rope: Rope, positions: int) -> Tensor:
        key = (rope, positions)
        if key not in self.tables:
            spare = self.build.spare_positions if rope.axes else 0
            host = self._host("rotary table", TABLE_BYTES * rope.dim, positions + spare)
            table = cos_sin(rope, positions + spare, host).to(self.build.device.target)
            if spare:
                self.build.axis_tables.append(AxisTable(rope.axes, table, positions))
            self.tables[key] = table
        return self.tables[key]

    def _host(self, name: str, nbytes: int, positions: int) -> torch.device:
        """Where a table is made that takes `nbytes` a position."""
        target = torch.device(self.build.device.target)
        if target.type == "meta":
            return target
        needed, free = nbytes * positions, self.build.device.memory().free
        if needed > free:
            raise MemoryBudgetError(
                f"the {name} for {positions:,} tokens takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
                "of the device's memory are free; lower --max-model-len."
            )
        return torch.device("cpu")  # identical bits on every device


class Attention:
    """An AttentionBlock of queries, keys and values. norm: the input norm and its name, or None if x needs no norm.
    relative_bias: the weight of that name (AttentionBackend.bind), with this rank's heads."""

    def __init__(
        self,
        build: Build,
        prefix: str,
        norm: tuple[str, Norm] | None,
        shape: AttentionShape,
        tables: RotaryTable,
        relative_bias: Tensor | Parameter | None = None,
    ) -> None:
        heads = _heads(build, shape)
        q_rows, kv_rows = heads.rows(heads.q), heads.rows(heads.kv)
        sources = shape.layout.sources(prefix, shape.inputs or shape.hidden, heads)
        self.gate = _output_gate(build, prefix, shape, heads)
        self.sources = sources if self.gate is None else self.gate.sources(sources)
        self.linear = Linear(build, self.sources, bias=shape.bias)
        self.input: AttentionInput = PlainInput(self.linear)
        if norm is not None:
            self.input = NormLinear(build, *norm, self.linear)
        wide = shape.heads * shape.head_dim
        output = WeightShard(f"{prefix}.{shape.layout.output}", shape.hidden, wide, columns=q_rows)
        self.output = Linear(build, [output], bias=shape.output_bias)
        self.qk_norm = QKNorm(build, prefix, shape, q_rows, kv_rows) if shape.whole_norm else None
        head_norm = Norm(shape.eps, shape.norm_offset).spec(shape.head_dim, build.dtype) if shape.head_norm else None
        kv_heads = heads.kv[1] - heads.kv[0]
        self.spec = LayerSpec(
            layer=len(build.mixers),
            kind=_kind(shape),
            num_heads=heads.q[1] - heads.q[0],
            num_kv_heads=kv_heads,
            head_dim=shape.head_dim,
            scale=shape.scale,
            dtype=build.dtype,
            cache=build.cache(kv_heads, shape.head_dim, shape.window or shape.chunk) if shape.causal else None,
            rotary=None if shape.rope is None else RotarySpec(shape.head_dim, shape.rope.dim, shape.style),
            q_norm=head_norm,
            k_norm=head_norm,
            window=shape.window,
            softcap=shape.softcap,
            relative_reach=shape.relative_reach,
            slopes=shape.slopes[slice(*heads.q)],
            chunk=shape.chunk,
            sinks=shape.sinks,
        )
        self.clip = shape.clip
        self.temperature: Tensor | None = None  # [positions, 1] float32
        if shape.temperature is not None:
            self.temperature = tables.temperature(shape.temperature, shape.max_positions)
        weights = LateWeights()
        if shape.causal:
            weights.add_kv_scales(build, prefix)
        if isinstance(relative_bias, Parameter):
            weights.parameters["relative_bias"] = relative_bias
        elif relative_bias is not None:
            weights["relative_bias"] = relative_bias
        if shape.rope is not None:
            weights["cos_sin"] = tables.table(shape.rope, shape.max_positions)
        if head_norm is not None:
            weights.add_head_norms(build, prefix, head_norm, shape.norm_names)
        if shape.sinks:
            weights.add_sinks(build, prefix, shape.heads, heads.q)
        self.weights = weights
        self.mixer = build.mixer(self.spec, weights)

    def again(self, build: Build) -> Attention:
        """The same weights with keys and values of their own, for a model that calls them several times."""
        other = copy(self)
        other.spec = replace(self.spec, layer=len(build.mixers))
        other.mixer = build.mixer(other.spec, self.weights)
        return other

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        qkv, residual = self.input(x, residual)
        if self.gate is not None:
            qkv, gates = self.gate.split(qkv)
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        if self.qk_norm is not None:
            self.qk_norm(qkv)
        if self.temperature is not None:
            qkv[:, : self.spec.num_heads * self.spec.head_dim] *= self.temperature[launch.positions]
        mixed = self.mixer.fused(qkv, launch.positions, caches, launch.plans[self.spec.layer])
        return mixed if self.gate is None else self.gate(mixed, gates), residual


class OutputGate:
    """Gates of attention's result, one for each element. The checkpoint's q projection has, for each head, its query
    and then its gates; the fused product has all gates behind q, k and v."""

    def __init__(self, build: Build, shape: AttentionShape, heads: Heads) -> None:
        self.heads, self.size = heads, shape.head_dim
        self.n = (heads.q[1] - heads.q[0]) * shape.head_dim
        self.call = build.ops.bind("sigmoid_gate", SigmoidGateSpec(self.n, build.dtype, self.n))

    def sources(self, plain: list[WeightShard]) -> list[WeightShard]:
        """Those of the fused product. plain: of q, k and v of a layer without gates."""
        whole, *others = plain
        return [*self._shards(whole, 0), *others, *self._shards(whole, self.size)]

    def _shards(self, whole: WeightShard, first: int) -> list[WeightShard]:
        starts = (2 * self.size * head + first for head in range(*self.heads.q))
        return [replace(whole, n=2 * whole.n, rows=(start, start + self.size)) for start in starts]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the product returned -> q, k and v, and the gates."""
        return x[:, : -self.n], x[:, -self.n :]

    def __call__(self, mixed: Tensor, gates: Tensor) -> Tensor:
        result: Tensor = self.call(mixed, gates)
        return result


class HeadGate:
    """One gate for each head of attention's result, behind q, k and v in the fused product. name: of its weight."""

    def __init__(self, build: Build, name: str, shape: AttentionShape, heads: Heads) -> None:
        self.shard = WeightShard(name, shape.heads, shape.hidden, heads.q)
        self.n = heads.q[1] - heads.q[0]
        self.call = build.ops.bind("sigmoid_gate", SigmoidGateSpec(self.n * shape.head_dim, build.dtype, self.n))

    def sources(self, plain: list[WeightShard]) -> list[WeightShard]:
        """As of OutputGate."""
        return [*plain, self.shard]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As of OutputGate."""
        return x[:, : -self.n], x[:, -self.n :]

    def __call__(self, mixed: Tensor, gates: Tensor) -> Tensor:
        result: Tensor = self.call(mixed, gates)
        return result


def _output_gate(build: Build, prefix: str, shape: AttentionShape, heads: Heads) -> OutputGate | HeadGate | None:
    if shape.head_gate:
        return HeadGate(build, f"{prefix}.{shape.head_gate}", shape, heads)
    return OutputGate(build, shape, heads) if shape.gated else None


class PlainInput:
    """Has NormLinear's signature, but no norm."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.linear(x), x if residual is None else residual


class QKNorm:
    """Normalizes queries and keys in place, each over the whole projection of all ranks. q_rows, kv_rows: this rank's
    rows of the weights."""

    def __init__(self, build: Build, prefix: str, shape: AttentionShape, q_rows: Bounds, kv_rows: Bounds) -> None:
        sizes = q_rows[1] - q_rows[0], kv_rows[1] - kv_rows[0]
        spec = QKNormSpec(*sizes, build.dtype, shape.eps, build.reduce)
        self.call = build.ops.bind("qk_norm", spec)
        norm = Norm(shape.eps)
        assert shape.norm_names is not None, "a norm over all heads has weights"
        self.parameters = [
            norm_parameter(build, f"{prefix}.{name}", norm.spec(count * shape.head_dim, build.dtype), rows)
            for name, count, rows in zip(
                shape.norm_names, (shape.heads, shape.kv_heads), (q_rows, kv_rows), strict=True
            )
        ]

    def __call__(self, qkv: Tensor) -> None:
        self.call(qkv, *(parameter.tensor for parameter in self.parameters))


class LateWeights(dict[str, Tensor]):
    """A mixer's weights: finished tables, and parameters that are filled when the model is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[str, Parameter] = {}

    def add_kv_scales(self, build: Build, attention: str) -> None:
        """Adds the scales of keys and values if they are kept in KV_FP8: the checkpoint's, or 1. attention: the name of
        the layer in the checkpoint."""
        if build.kv != KV_FP8:
            return
        parts = build.weights.kv_scales(attention)
        for name in ("k_scale", "v_scale"):
            if name in parts:
                self.parameters[name] = build.register_parameter(Parameter({"weight": [parts[name]]}, _as_it_is))
            else:
                self[name] = torch.ones(1, device=build.device.target)

    def add_head_norms(self, build: Build, attention: str, norm: NormSpec, names: tuple[str, str] | None) -> None:
        """Adds the weights of the norms of queries and keys. names: as AttentionShape.norm_names."""
        if names is None:
            ones = torch.ones(norm.n, dtype=torch_dtype(build.dtype), device=build.device.target)
            self["q_norm"] = self["k_norm"] = ones
            return
        for name, stored in zip(("q_norm", "k_norm"), names, strict=True):
            self.parameters[name] = norm_parameter(build, f"{attention}.{stored}", norm)

    def add_sinks(self, build: Build, attention: str, heads: int, here: Bounds) -> None:
        """Adds the sinks of this rank's heads."""
        part = Part(f"{attention}.sinks", (heads,), None if here == (0, heads) else here)
        self.parameters["sinks"] = build.register_parameter(Parameter({"weight": [part]}, _as_it_is))

    def __missing__(self, name: str) -> Tensor:
        return self.parameters[name].tensor


def _as_it_is(raw: dict[str, Tensor], into: Packed | None) -> Packed:
    if into is None:
        return raw
    into["weight"].copy_(raw["weight"])
    return into


def _kind(shape: AttentionShape) -> str:
    """LayerSpec.kind."""
    if not shape.causal:
        return "encoder_attention"
    if shape.chunk is not None:
        return "chunked_attention"
    if shape.lookahead:
        return "lookahead_attention"
    if shape.relative_reach:
        return "relative_attention"
    return "alibi_attention" if shape.slopes else "attention"


def _heads(build: Build, shape: AttentionShape) -> Heads:
    q = build.shard(shape.heads, "the number of attention heads")
    return Heads(shape.heads, shape.kv_heads, shape.head_dim, q, kv_heads_of(build, shape.kv_heads))
