"""Attention over blocks, over other state, and within a launch alone: what a layer is and keeps, what a backend needs,
where the bytes are, and the bound layer. latent.py and sparse_attention.py have the contracts of other kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.errors import PlatformError
from tessera.platform.device import Device, Reason, Tensor
from tessera.platform.launch import Buffers, Launch, Plan
from tessera.platform.ops import NOT_PROMISED, BoundOps
from tessera.platform.quantization import KV_INT8, QuantSpec

if TYPE_CHECKING:
    from tessera.ops.norms import NormSpec
    from tessera.ops.rotary import RotarySpec

Caches = MutableSequence[Sequence[Tensor]]
"""By layer, the planes of its cache in the order of its KVLayout, each [num_blocks, ...block shape]. A layer writes
them in place, or assigns caches[i] = new where memory is donated."""


# ---- what a layer keeps ----------------------------------------------------------------------------------------------


class FullAttentionSpec(msgspec.Struct, frozen=True, tag=True):
    """Keys and values of every token, in `dtype`. quant: the stored numbers are multiplied by scales. Those of KV_INT8
    are in the planes "k_scale" and "v_scale" of the layout, those of KV_FP8 are weights of the layer."""

    num_kv_heads: int
    head_dim: int
    dtype: str
    quant: QuantSpec | None = None


class SlidingWindowSpec(FullAttentionSpec, frozen=True, tag=True):
    """Keys and values of the last `window` tokens."""

    window: int = 0


class CrossSpec(FullAttentionSpec, frozen=True, tag=True):
    """Keys and values of the positions of a request's encoder, at most `length`. They are written once, when its row
    begins, and all of its tokens see them."""

    length: int = 0


class LatentSpec(msgspec.Struct, frozen=True, tag=True):
    """One vector of every token, which all heads share, in `dtype`: `rank` numbers that keys and values are computed
    from, then `rope_dim` that are part of each key as they are. Every rank of a tensor group keeps all of it."""

    rank: int
    rope_dim: int
    dtype: str


class IndexSpec(msgspec.Struct, frozen=True, tag=True):
    """One key of every token, of `dim` numbers in `dtype`, by which an indexer selects tokens. Every rank of a tensor
    group keeps all of it."""

    dim: int
    dtype: str


class StateSpec(msgspec.Struct, frozen=True, tag=True):
    """Tensors of fixed shape per request, whatever its length: one slot per request. shapes: by name."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: str


CacheSpec = FullAttentionSpec | SlidingWindowSpec | CrossSpec | LatentSpec | IndexSpec | StateSpec
"""What a layer keeps."""


AHEAD = "ahead"
"""The column of tokens [T] int32 that lookahead_attention reads: how many tokens after it a token sees too, all of them
in the same launch. Those of an image see each other in some models."""

SOURCES = "sources"
"""The column of rows [R] int32 that cross_attention reads: how many positions a row's encoder has."""


# ---- what a layer is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSpec:
    """One layer of attention, or of a mixer that keeps a state."""

    # number among the layers of the model, or of its pipeline stage, that mix tokens
    layer: int
    # "attention"; "alibi_attention", the same with `slopes`; "relative_attention", the same with `relative_reach`;
    # "chunked_attention", the same with `chunk`; "lookahead_attention", where a token also sees as many tokens after
    # it as launch.columns[AHEAD] says;
    # "encoder_attention", where each token sees all tokens of its row in the launch, those after it too;
    # "cross_attention", where each token sees all positions of its row's encoder and no token; or the name of a state
    # mixer
    kind: str
    # of queries, on this rank
    num_heads: int
    # of keys and values, on this rank
    num_kv_heads: int
    # elements of a head
    head_dim: int
    # of scores
    scale: float
    # of activations
    dtype: str
    # what it keeps; None for a layer that keeps nothing between steps, as encoder_attention
    cache: CacheSpec | None
    # None: queries and keys are not turned
    rotary: RotarySpec | None = None
    # RMS norm over each head of queries, before rotary
    q_norm: NormSpec | None = None
    # RMS norm over each head of keys, before rotary
    k_norm: NormSpec | None = None
    # tokens that a query sees, itself included; None: all before it. In encoder_attention a query sees the keys at
    # distances below it on both sides; None: all of its row
    window: int | None = None
    # largest absolute score
    softcap: float | None = None
    # whether each head has one more score, the weight "sinks", which takes part in the softmax and has no value
    sinks: bool = False
    # constants of a state mixer, by name
    options: tuple[tuple[str, float], ...] = ()
    # how many distances between a query and a key, from 0 on, the weight "relative_bias" tells apart, in
    # encoder_attention and relative_attention (T5, arXiv:1910.10683); 0: nothing is added to scores
    relative_reach: int = 0
    # in alibi_attention, of each head of queries on this rank: what is added to scores after soft cap, for each token
    # that a query comes after its key, is minus this (ALiBi, arXiv:2108.12409)
    slopes: tuple[float, ...] = ()
    # in chunked_attention, tokens of a chunk: position 0 begins the first, and a query sees its own chunk alone
    chunk: int | None = None

    @property
    def place(self) -> str:
        """The layer in words, without its number."""
        parts = [f"{self.num_heads} heads over {self.num_kv_heads} of {self.head_dim}", self.dtype]
        if self.window is not None:
            parts.append(f"window of {self.window}")
        if self.softcap is not None:
            parts.append(f"soft cap {self.softcap:g}")
        if self.sinks:
            parts.append("sinks")
        if self.relative_reach:
            parts.append(f"a bias for distances below {self.relative_reach}")
        if self.chunk is not None:
            parts.append(f"chunks of {self.chunk}")
        if self.slopes:
            parts.append(f"linear biases with slopes of {max(self.slopes):.3g} to {min(self.slopes):.3g}")
        if isinstance(self.cache, FullAttentionSpec) and self.cache.quant is not None:
            parts.append(f"keys and values in {self.cache.dtype}")
        if isinstance(self.cache, CrossSpec):
            parts.append(f"an encoder of up to {self.cache.length} positions")
        return ", ".join(parts)


@dataclass(frozen=True)
class LatentHeadsSpec:
    """Heads of latent attention, whichever tokens they see (DeepSeek-V2, arXiv:2405.04434): all share one vector per
    token, and each computes its key and value from the vector's first part."""

    # as in LayerSpec
    layer: int
    # of queries, on this rank; each has a key and a value of its own
    num_heads: int
    # elements of a head's query and key that are not turned; those of the key are computed from the latent
    nope_dim: int
    # elements of a head's value, which are computed from the latent
    value_dim: int
    # of scores
    scale: float
    # of activations
    dtype: str
    # what it keeps. The latent is kept normed; its last part is the turned part of every head's key
    cache: LatentSpec
    # RMS norm over the first part of the latent
    latent_norm: NormSpec
    # of the last part of queries and of the latent; its heads are that part alone. None: they are not turned
    rotary: RotarySpec | None = None

    @property
    def query_dim(self) -> int:
        """Elements of a head's query, and of its key: those that are not turned, then those that are."""
        return self.nope_dim + self.cache.rope_dim

    @property
    def place(self) -> str:
        """The layer in words, without its number."""
        sizes = f"{self.num_heads} heads of {self.nope_dim} + {self.cache.rope_dim}, values of {self.value_dim}"
        return f"{sizes}, a latent of {self.cache.rank}, {self.dtype}"


@dataclass(frozen=True)
class LatentLayerSpec(LatentHeadsSpec):
    """One layer of latent attention, in which a query sees all tokens up to its own."""

    @property
    def kind(self) -> str:
        """For messages and counts."""
        return "latent_attention"


@dataclass(frozen=True)
class SparseLatentLayerSpec(LatentHeadsSpec):
    """One layer of latent attention, in which a query sees the tokens alone that an indexer selected for it
    (DeepSeek-V3.2, arXiv:2512.02556)."""

    # tokens that are selected for a query, at most
    limit: int = 0

    @property
    def kind(self) -> str:
        """For messages and counts."""
        return "sparse_latent_attention"

    @property
    def place(self) -> str:
        return f"{super().place}, over {self.limit} tokens"


@dataclass(frozen=True)
class IndexerLayerSpec:
    """An indexer, which selects the tokens that attention then sees: those with the best scores, which are sums over
    its heads (DeepSeek-V3.2, arXiv:2512.02556). It has a cache and a number of its own, and may select for several
    layers."""

    # as in LayerSpec
    layer: int
    # of queries; every rank has all of them
    num_heads: int
    # elements of x, from which heads are weighted
    hidden: int
    # tokens that are selected for a query, at most
    limit: int
    # of scores
    scale: float
    # of activations
    dtype: str
    # what it keeps: turned keys
    cache: IndexSpec
    # of queries and keys. None: they are not turned
    rotary: RotarySpec | None = None

    @property
    def kind(self) -> str:
        """For messages and counts."""
        return "indexer"

    @property
    def place(self) -> str:
        """The layer in words, without its number."""
        return f"{self.num_heads} heads of {self.cache.dim}, of which {self.limit} tokens are selected, {self.dtype}"


MixerSpec = LayerSpec | LatentLayerSpec | SparseLatentLayerSpec | IndexerLayerSpec
"""What a layer that mixes tokens is."""


@dataclass(frozen=True)
class CacheConstraints:
    """A backend's needs, from which core solves block sizes and cache groups."""

    # tokens of a block that it supports, the preferred number first
    block_sizes: tuple[int, ...]
    # whether their multiples are supported too
    block_multiple: bool = True
    # bytes: a layer's part of a block begins at a multiple
    align_bytes: int = 1
    # whether each plane must be one contiguous tensor; otherwise a block of all layers is one span of bytes, and a
    # plane a strided view of it
    dense_planes: bool = False
    # whether it reads block tables on the host too (Launch.block_tables_host)
    host_tables: bool = False
    # whether attend(lse=True) also returns the natural logarithm of the sum of the exponents of a query's scores, by
    # which results over different keys can be joined
    returns_lse: bool = False


@dataclass(frozen=True)
class Plane:
    """One tensor of a block. axes: (name, size) from the slowest to the fastest. An axis that is split appears twice,
    its slower part first. The names are "token", "head" and "dim" for keys and values; the planes of a state may use
    any names."""

    name: str
    dtype: str
    axes: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one block: the sizes of the axes in their order."""
        return tuple(size for _, size in self.axes)

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return prod(self.shape) * self._itemsize

    @property
    def _itemsize(self) -> int:
        if self.dtype not in ITEMSIZE:
            raise PlatformError(f"plane '{self.name}' has the unknown dtype '{self.dtype}'; use {', '.join(ITEMSIZE)}.")
        return ITEMSIZE[self.dtype]

    @property
    def canonical_order(self) -> list[int]:
        """The axes by number, in the order (token, head, dim); the parts of a split axis side by side."""
        names = list(dict.fromkeys(name for name, _ in self.axes))
        names.sort(key=lambda name: _CANONICAL.index(name) if name in _CANONICAL else len(_CANONICAL))
        return [i for name in names for i, (axis, _) in enumerate(self.axes) if axis == name]

    def to_canonical(self, data: Array) -> Array:
        """[n, nbytes] uint8 in the plane's layout -> the same bytes ordered (token, head, dim)."""
        whole = data.reshape(len(data), *self.shape, self._itemsize)
        moved = whole.transpose(0, *(i + 1 for i in self.canonical_order), whole.ndim - 1)
        return np.ascontiguousarray(moved).reshape(len(data), -1)


_CANONICAL = ("token", "head", "dim")
ITEMSIZE: Mapping[str, int] = {
    "float32": 4, "bfloat16": 2, "float16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclass(frozen=True)
class KVLayout:
    """Where the bytes of one layer's block are: its planes, one after another. Core places the layers of a group side
    by side, so that a block is one contiguous span of bytes, unless CacheConstraints.dense_planes asks for planes of
    their own. It copies blocks without knowing the backend."""

    planes: tuple[Plane, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one block of one layer."""
        return sum(plane.nbytes for plane in self.planes)

    def export(self, data: Array) -> Array:
        """[n, nbytes] uint8 of n blocks -> canonical form: the planes in order, each ordered (token, head, dim)."""
        return np.concatenate([plane.to_canonical(part) for plane, part in self._parts(data)], axis=1)

    def _parts(self, data: Array) -> list[tuple[Plane, Array]]:
        ends = np.cumsum([plane.nbytes for plane in self.planes])
        return list(zip(self.planes, np.split(data, ends[:-1], axis=1), strict=True))


# ---- backends --------------------------------------------------------------------------------------------------------


class Mixer(ABC):
    """A bound layer that mixes tokens through its cache or state. A model calls only its fused()."""

    @abstractmethod
    def fused(self, x: Any, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """The fused attention input, then attention. x: result of the layer's input projections, for attention [T, (H +
        2 Hk) D], for other kinds what their input says (LatentInput, ScanInput, ...). Returns [T, H D], D of values;
        an indexer what it selects."""


class AttentionLayer(Mixer):
    """A bound attention layer. write() and attend() are separate calls."""

    @abstractmethod
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        """Writes k, v [T, Hk, D] into the cache slots of the plan."""

    @abstractmethod
    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        """q [T, H, D] -> [T, H, D]; with lse also the float32 log-sum-exp of the scores [T, H], sinks included."""

    @abstractmethod
    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, (H + 2 Hk) D] -> q, k, v, after QK norm and rotary."""

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """Default: heads(), write(), attend()."""
        q, k, v = self.heads(x, positions)
        self.write(k, v, caches, plan)
        return self.attend(q, caches, plan).flatten(1)


class HeadsInput:
    """Computes q, k and v of a layer with the bound ops: split, QK norm, rotary."""

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


class HeadsLayer(HeadsInput, AttentionLayer):
    """An attention layer that computes q, k and v with the bound ops. A subclass adds write() and attend()."""


class EncoderLayer(HeadsInput, Mixer):
    """A layer of encoder_attention that computes q, k and v with the bound ops. A subclass adds attend()."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        """q [T, H, D], k and v [T, Hk, D] -> [T, H, D]. Each token sees the tokens of its own row, within the window.
        Padding may hold NaN, which must not reach the rows; its result may be anything."""

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        q, k, v = self.heads(x, positions)
        return self.attend(q, k, v, plan).flatten(1)


class CrossLayer(Mixer):
    """A layer of cross_attention: the queries of a launch's tokens over what an encoder made (the decoder's second
    attention in arXiv:1706.03762). The slots of its cache group in a launch are not those of its tokens: they are those
    of all positions of the encoders whose rows begin in it, and mostly none."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec

    @abstractmethod
    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        """Writes k, v [N, Hk, D] into the cache slots of the plan, which are as many. Called before the launch's
        fused(), and only if there are some."""

    @abstractmethod
    def attend(self, q: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """q [T, H, D] -> [T, H, D]. A token sees as many positions as launch.columns[SOURCES] says of its row; if these
        are none, its result is zero. Padding may hold NaN, which must not reach the rows."""

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        """x: queries alone [T, H D]."""
        return self.attend(x.view(len(x), self.spec.num_heads, self.spec.head_dim), caches, plan).flatten(1)


NO_CACHE = -1
"""Instead of the number of a cache group."""


@dataclass(frozen=True)
class AttentionGroup:
    """Layers that share a plan: they are in one cache group, one backend runs them, and their specs differ in nothing
    but the number of the layer. spec: of the first. number: of the cache group, by which a Launch lists slots and
    tables; NO_CACHE for layers that keep nothing. name: of no other group of the model, for the names of buffers."""

    spec: Any
    layers: tuple[int, ...]
    number: int
    name: str
    device: Device


_Spec = TypeVar("_Spec", bound=MixerSpec)


class MixerBackend(ABC, Generic[_Spec]):
    """One implementation of a kind of layer; each kind has a subclass of this with a spec of its own. fallback: it is
    core's reference, which --no-fallback forbids."""

    name: str
    fallback = False

    @abstractmethod
    def handles(self, spec: MixerSpec) -> bool:
        """Whether a layer is of the kind that the backend is for. The other methods see no other layers."""

    @abstractmethod
    def supports(self, spec: _Spec) -> Reason | None:
        """The reason why the backend cannot run a layer, in words for the user; None if it can. Called once per layer,
        on backends in the order of Platform.attention_backends(); the first that returns None is bound. Sees only
        constants."""

    def constraints(self, spec: _Spec) -> CacheConstraints:
        """What a layer that the backend supports requires of the cache and of launches. Called at load, before the
        cache exists, for layers that have one. Every backend of such layers has it."""
        raise PlatformError(f"attention backend '{self.name}' needs constraints() for {type(spec.cache).__name__}.")

    def batch_invariant(self, spec: _Spec) -> Reason | None:
        """Why a token's result may have other bits if other rows are in the launch, if its prompt is computed in other
        chunks, or if drafts are verified with it; None if it never has. Asked with --batch-invariant only, where bind()
        finds BoundOps.batch_invariant set. Default: it does not promise that."""
        return NOT_PROMISED

    def kv_cache_layout(self, spec: Any, block_size: int) -> KVLayout:
        """Where the bytes of one block of one layer are. spec: what the layer keeps. block_size: tokens per block, a
        size that constraints() allows; 0 for a StateSpec, whose block is one request. In Caches, the layer then has one
        tensor per plane, of shape [num_blocks, *plane.shape] and the plane's dtype."""
        raise PlatformError(f"attention backend '{self.name}' needs a kv_cache_layout() for {type(spec).__name__}.")

    @abstractmethod
    def bind(self, spec: _Spec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        """Binds one layer. weights: as the contract of the kind says. They may be filled until the model is loaded, so
        look them up in the hot call."""

    @abstractmethod
    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Plan:
        """Prepares a launch for a group of layers. buffers: if attention of the launch is captured, or replayed from a
        graph, the plan's tensors must come from there, since they keep their addresses; None if it runs eagerly."""


class AttentionBackend(MixerBackend[LayerSpec]):
    """One implementation of attention over blocks, of another mixer over StateSpec, of encoder_attention, or of
    cross_attention, whose layers are CrossLayers."""

    def handles(self, spec: MixerSpec) -> bool:
        return isinstance(spec, LayerSpec)

    def copy_states(self, planes: Sequence[Tensor], before: Tensor, after: Tensor) -> None:
        """Copies the states of a layer with a StateSpec from some blocks to others, so that a draft is computed where
        it leaves a state of its own. planes: of the layer in Caches. before, after [n]: blocks; none but the null block
        is written twice. Default: by torch."""
        for plane in planes:
            plane.index_put_((after.long(),), plane.index_select(0, before))

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        """Default: keys, then values, each ordered (token, head, dim); for KV_INT8 the scales of both come first."""
        if not isinstance(spec, FullAttentionSpec):
            return super().kv_cache_layout(spec, block_size)
        heads = ("token", block_size), ("head", spec.num_kv_heads)
        scales = (Plane(f"{name}_scale", KV_INT8.scale_dtype, heads) for name in "kv" if spec.quant == KV_INT8)
        return KVLayout((*scales, *(Plane(name, spec.dtype, (*heads, ("dim", spec.head_dim))) for name in "kv")))

    @abstractmethod
    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        """Binds one layer. weights: those that the spec has of "q_norm" and "k_norm" [D], "cos_sin" [positions, rotary
        dim] float32 (cosines, then sines), "sinks" [H] of the layer's dtype, "k_scale" and "v_scale" [1] float32 for a
        cache in KV_FP8, and "relative_bias" float32, [H, 2 reach - 1] or, in relative_attention, where no key comes
        after its query, [H, reach]. It is added to scores after soft cap: entry key - query + reach - 1, where larger
        distances count as reach - 1. They may be filled until the model is loaded, so look them up in the hot
        call."""
