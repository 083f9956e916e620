"""Attention over blocks and other state: what a layer keeps, what a backend needs, where the bytes are, and the bound
layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.platform.device import Device, Reason, Tensor
from tessera.platform.launch import Buffers, Launch, Plan
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import QuantSpec

if TYPE_CHECKING:
    from tessera.ops.norms import NormSpec
    from tessera.ops.rotary import RotarySpec

Caches = MutableSequence[Sequence[Tensor]]
"""By layer, the planes of its cache in the order of its KVLayout: [num_blocks, ...block shape] each. Written in place,
or caches[i] = new where memory is donated."""


# ---- what a layer keeps
# -----------------------------------------------------------------------------------------------------------------


class FullAttentionSpec(msgspec.Struct, frozen=True, tag=True):
    """Keys and values of every token, in `dtype`. quant: they are its numbers times scales, which planes "k_scale" and
    "v_scale" of the layout hold."""

    num_kv_heads: int
    head_dim: int
    dtype: str
    quant: QuantSpec | None = None


class SlidingWindowSpec(FullAttentionSpec, frozen=True, tag=True):
    """Keys and values of the last `window` tokens."""

    window: int = 0


class MLASpec(msgspec.Struct, frozen=True, tag=True):
    """One compressed vector a token for all heads. Declared; no layer of core keeps it yet."""

    rank: int
    rotary_dim: int
    dtype: str


class StateSpec(msgspec.Struct, frozen=True, tag=True):
    """Tensors of fixed shape a request, whatever its length: one slot each. shapes and dtypes by name."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: str


CacheSpec = FullAttentionSpec | SlidingWindowSpec | MLASpec | StateSpec
"""What a layer keeps."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer of attention, or of another mixer over state. kind: "attention", or the name of a state mixer. options:
    constants of such a mixer. q_norm, k_norm: RMS norm over each head before rotary."""

    layer: int
    kind: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: str
    cache: CacheSpec
    rotary: RotarySpec | None = None
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None
    window: int | None = None
    softcap: float | None = None
    options: tuple[tuple[str, float], ...] = ()


def layer_place(spec: LayerSpec) -> str:
    """A layer of attention, or of another mixer, without its number."""
    parts = [f"{spec.num_heads} heads over {spec.num_kv_heads} of {spec.head_dim}", spec.dtype]
    if spec.window is not None:
        parts.append(f"window of {spec.window}")
    if spec.softcap is not None:
        parts.append(f"soft cap {spec.softcap:g}")
    if getattr(spec.cache, "quant", None) is not None:
        parts.append(f"keys and values in {spec.cache.dtype}")
    return ", ".join(parts)


@dataclass(frozen=True)
class CacheConstraints:
    """What a backend needs; core solves block sizes and groups from it. block_sizes: that it can do, the preferred
    first; multiples of them too where block_multiple. host_lengths: the lengths that it must know on the
    host. returns_lse: attend() can return the log of the sum of exponents."""

    block_sizes: tuple[int, ...]
    block_multiple: bool = True
    align_bytes: int = 1
    index_dtype: str = "int32"
    host_lengths: Literal["none", "bound", "exact"] = "bound"
    returns_lse: bool = False


@dataclass(frozen=True)
class Plane:
    """One tensor of a block. axes: (name, size) from the slowest to the fastest; a name that stands twice is split, its
    slower part first. The names are "token", "head" and "dim" for keys and values; a state's planes may name theirs
    freely."""

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one block: sizes of the axes in their order."""
        return tuple(size for _, size in self.axes)

    @property
    def nbytes(self) -> int:
        """Of one block."""
        return prod(self.shape) * ITEMSIZE[self.dtype]

    def _order(self) -> list[int]:
        names = list(dict.fromkeys(name for name, _ in self.axes))
        names.sort(key=lambda name: _CANONICAL.index(name) if name in _CANONICAL else len(_CANONICAL))
        return [i for name in names for i, (axis, _) in enumerate(self.axes) if axis == name]

    def to_canonical(self, data: Array) -> Array:
        """[n, nbytes] uint8 as it stands -> the same bytes ordered (token, head, dim)."""
        whole = data.reshape(len(data), *self.shape, ITEMSIZE[self.dtype])
        order = self._order()
        moved = whole.transpose(0, *(i + 1 for i in order), whole.ndim - 1)
        return np.ascontiguousarray(moved).reshape(len(data), -1)

    def from_canonical(self, data: Array) -> Array:
        """The inverse of to_canonical."""
        order = self._order()
        sizes = [self.shape[i] for i in order]
        whole = data.reshape(len(data), *sizes, ITEMSIZE[self.dtype])
        back = np.argsort(order)
        moved = whole.transpose(0, *(int(i) + 1 for i in back), whole.ndim - 1)
        return np.ascontiguousarray(moved).reshape(len(data), -1)


_CANONICAL = ("token", "head", "dim")
ITEMSIZE: Mapping[str, int] = {
    "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclass(frozen=True)
class KVLayout:
    """Where the bytes of one layer's block are: its planes one after the other. Core lays the layers of a group side by
    side in a block, so that a block is one span of bytes, and moves blocks by it without knowing the backend."""

    planes: tuple[Plane, ...]

    @property
    def nbytes(self) -> int:
        """Of one block of one layer."""
        return sum(plane.nbytes for plane in self.planes)

    def export(self, data: Array) -> Array:
        """[n, nbytes] uint8 of n blocks -> canonical: each plane ordered (token, head, dim), planes in order."""
        return np.concatenate([plane.to_canonical(part) for plane, part in self._parts(data)], axis=1)

    def load(self, data: Array) -> Array:
        """The inverse of export."""
        return np.concatenate([plane.from_canonical(part) for plane, part in self._parts(data)], axis=1)

    def _parts(self, data: Array) -> list[tuple[Plane, Array]]:
        ends = np.cumsum([plane.nbytes for plane in self.planes])
        return list(zip(self.planes, np.split(data, ends[:-1], axis=1), strict=True))


# ---- backends --------------------------------------------------------------------------------------------------------
# -------------------


class Mixer(ABC):
    """A bound layer that mixes tokens through what it keeps; all that a model calls."""

    @abstractmethod
    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """The fused attention input and attention: x is what the layer's input projection made, for attention [T, (H +
        2 Hk) D]; the result [T, H D]."""


class AttentionLayer(Mixer):
    """A bound attention layer. write is apart from attend."""

    @abstractmethod
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        """k, v [T, Hk, D] into the slots of the plan."""

    @abstractmethod
    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        """q [T, H, D] -> [T, H, D]; with lse also the float32 log of the sum of exponents [T, H]."""

    @abstractmethod
    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, (H + 2 Hk) D] -> q, k, v with QK norm and rotary done."""

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """Default: norm and rotary, write, attend."""
        q, k, v = self.heads(x, positions)
        self.write(k, v, caches, plan)
        return self.attend(q, caches, plan).flatten(1)


class HeadsLayer(AttentionLayer):
    """An attention layer up to q, k and v, over the bound ops: split, QK norm, rotary. Left to do: write and attend."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        self.spec, self.weights = spec, weights
        self.rotary = ops.bind("rotary", spec.rotary) if spec.rotary is not None else None
        self.q_norm = ops.bind("rms_norm", spec.q_norm) if spec.q_norm is not None else None
        self.k_norm = ops.bind("rms_norm", spec.k_norm) if spec.k_norm is not None else None

    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        wide = x.view(len(x), spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        q, k, v = wide.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
        if self.q_norm is not None:
            q = self.q_norm(q, self.weights["q_norm"])
        if self.k_norm is not None:
            k = self.k_norm(k, self.weights["k_norm"])
        if self.rotary is not None:
            self.rotary(q, k, positions, self.weights["cos_sin"])
        return q, k, v


class AttentionBackend(ABC):
    """One way of doing attention over blocks, or another mixer over StateSpec. fallback: it is core's reference, which
    --no-fallback forbids."""

    name: str
    fallback = False

    @abstractmethod
    def supports(self, spec: LayerSpec) -> Reason | None:
        """Why a layer cannot be done, in words that a person reads; None where it can. Asked once a layer, of
        backends in the order of Platform.attention_backends(); the first that says None is bound. Sees
        constants only."""

    @abstractmethod
    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        """What the cache and the launches must be like for a layer that it supports. Asked at load, before
        there is a cache."""

    @abstractmethod
    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        """Where the bytes of one block of one layer are. block_size: tokens a block, one that constraints()
        allows; 0 for a StateSpec, whose block is one request. What bind() is given as caches has one tensor a
        plane, [num_blocks, *plane.shape] of its dtype."""

    @abstractmethod
    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        """weights: "q_norm" and "k_norm" [D], "cos_sin" [positions, rotary dim] float32 (cosines, then sines), where
        the spec has them."""

    @abstractmethod
    def plan(self, launch: Launch, group: int, buffers: Buffers | None) -> Plan:
        """Once for each cache group of a launch. buffers: persistent ones where launches are captured."""
