"""Tests of attention: the launches, the steps into which a platform splits them, and a backend's layer over a cache in
which every slot that was not written holds NaN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import REFERENCE, QuantizeSpec
from tessera.ops.quantize import quantize
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import (
    AHEAD,
    AttentionBackend,
    AttentionGroup,
    AttentionLayer,
    FullAttentionSpec,
    KVLayout,
    LayerSpec,
    MixerSpec,
    SlidingWindowSpec,
)
from tessera.platform.launch import Kind, Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import KV_FP8, KV_INT8, ActSpec, QuantSpec
from tessera.platform.shapes import LaunchShape, ShapePolicy, StepShape
from tessera.testing.reference import host_device

# ---- cases: decode, prefill, chunks and mixtures of them


Rows = tuple[tuple[int, int], ...]
Numbers = Literal["usual", "large", "small"]
"""Of queries, keys and values. large: scores are beyond float16 before they are scaled, and so far apart that each
query sees one key. small: keys and values are, queries are large, and one key is zero."""


@dataclass(frozen=True)
class LaunchCase(ABC):
    """The rows of a launch over blocks, and how they lie."""

    rows: Rows  # tokens to compute and tokens in the cache afterwards, decode rows first
    block_size: int = 16
    verifies: bool = field(default=False, kw_only=True)  # all decode, with drafts beside each row's first token
    stride: int = field(default=0, kw_only=True)  # tokens between the starts of rows; 0: no padding between them
    padding: int = field(default=0, kw_only=True)  # padding rows, and tokens, at the end
    shared: int = field(default=0, kw_only=True)  # leading blocks that all rows share
    window: int | None = field(default=None, kw_only=True)  # tokens that a query sees; None: all before it
    dtype: str = field(default="float32", kw_only=True)

    @property
    def most_decoded(self) -> int:
        """Tokens of the longest decode row, at least 1."""
        return max(tokens for tokens, _ in self.rows) if self.verifies else 1

    @property
    def reach(self) -> int | None:
        """Tokens that the cache holds for a query, itself among them; None: all."""
        return self.window

    @abstractmethod
    def spec(self) -> MixerSpec:
        """The layer's."""


Case = TypeVar("Case", bound=LaunchCase)


@dataclass(frozen=True)
class AttentionCase(LaunchCase):
    """One launch to test."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 12
    softcap: float | None = None
    sinks: bool = False
    kv_dtype: str = ""  # of the cache; "": as dtype; "int8" and "fp8" are KV_INT8 and KV_FP8, which have scales
    scale: float | None = None  # of scores; None: that of the head's size
    numbers: Numbers = "usual"  # how large they are
    alibi: bool = False  # whether scores have linear biases
    relative_reach: int = 0  # distances that a bias of scores tells apart; 0: there is none
    chunk: int | None = None  # tokens of a chunk, of which a query sees its own alone
    together: int | None = None  # tokens of a group of those that a launch computes, which see each other

    @property
    def cache_dtype(self) -> str:
        """The dtype of the keys and values in the cache."""
        return self.kv_dtype or self.dtype if self.quant is None else self.quant.dtype

    @property
    def quant(self) -> QuantSpec | None:
        return {"int8": KV_INT8, "fp8": KV_FP8}.get(self.kv_dtype)

    @property
    def cache(self) -> FullAttentionSpec:
        """What the layer keeps."""
        if self.reach is None:
            return FullAttentionSpec(self.kv_heads, self.head_dim, self.cache_dtype, self.quant)
        return SlidingWindowSpec(self.kv_heads, self.head_dim, self.cache_dtype, self.quant, window=self.reach)

    @property
    def reach(self) -> int | None:
        return self.window or self.chunk

    def spec(self) -> LayerSpec:
        return LayerSpec(
            0, self.kind, self.heads, self.kv_heads, self.head_dim, self.factor, self.dtype, self.cache,
            window=self.window, softcap=self.softcap, sinks=self.sinks, relative_reach=self.relative_reach,
            slopes=self.slopes, chunk=self.chunk,
        )  # fmt: skip

    @property
    def kind(self) -> str:
        """As LayerSpec.kind."""
        if self.chunk is not None:
            return "chunked_attention"
        if self.together is not None:
            return "lookahead_attention"
        if self.relative_reach:
            return "relative_attention"
        return "alibi_attention" if self.alibi else "attention"

    def ahead(self, tokens: int) -> Array:
        """[tokens] int32: how many tokens after each of a launch's tokens it sees."""
        if self.together is None:
            return np.zeros(tokens, np.int32)
        places = np.arange(tokens)
        ends = np.minimum((places // self.together + 1) * self.together, tokens)
        seen: Array = (ends - 1 - places).astype(np.int32)
        return seen

    @property
    def slopes(self) -> tuple[float, ...]:
        """Those of linear biases: each head's is another."""
        return tuple(0.7 * 0.8**head for head in range(self.heads)) if self.alibi else ()

    @property
    def factor(self) -> float:
        """By which scores are multiplied."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def small(self) -> float:
        """The size of keys and values that are small; queries are as large as keys are small. float16 does not hold
        smaller ones."""
        return 1e-3 if self.dtype == "float16" else 1e-6


VARIANTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "plain": {},
        "window": {"window": 9},
        "softcap": {"softcap": 0.7},
        "window-softcap": {"window": 23, "softcap": 0.7},
        "sinks": {"sinks": True},
        "window-sinks": {"window": 9, "sinks": True},
        "all-heads": {"kv_heads": 6, "head_dim": 20},
        "one-kv-head": {"kv_heads": 1},
        "wide-heads": {"heads": 4, "kv_heads": 2, "head_dim": 128},
        "padded": {"padding": 3},
        "scaled": {"scale": 0.11},
    }
)
"""How each variant differs from the plain case, by name."""


def attention_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """Cases by name: every kind of launch in every variant, with gaps between rows, over shared blocks, and of more
    keys, queries and rows than fit the tiles at which kernels change their path."""
    for kind, rows in rows_by_kind(block_size).items():
        plain = AttentionCase(rows, block_size, verifies=kind == "verify", dtype=dtype)
        for name, different in VARIANTS.items():
            yield f"{kind}-{name}", replace(plain, **different)  # type: ignore[arg-type]  # counts are whole
        yield f"{kind}-spaced", replace(plain, stride=max(tokens for tokens, _ in rows) + 2, padding=2)
    yield "shared", AttentionCase(_sharing(block_size), block_size, shared=2, dtype=dtype)
    yield "shared-window", AttentionCase(_sharing(block_size), block_size, shared=2, window=9, dtype=dtype)
    yield "long", AttentionCase(_LONG, block_size, dtype=dtype)
    yield "long-window", AttentionCase(_LONG, block_size, window=150, dtype=dtype)
    yield "many-rows", AttentionCase(_MANY, block_size, dtype=dtype)
    yield "many-queries", AttentionCase(((300, 310), (1, 1200)), block_size, dtype=dtype)
    yield "one-row", AttentionCase(((1, 4200),), block_size, dtype=dtype)
    yield "two-rows", AttentionCase(((1, 1100), (1, 290)), block_size, dtype=dtype)
    yield "groups-of-7", AttentionCase(_FEW, block_size, heads=14, kv_heads=2, dtype=dtype)
    yield "many-heads", AttentionCase(_FEW, block_size, heads=40, kv_heads=40, dtype=dtype)
    yield "many-groups", AttentionCase(_FEW, block_size, heads=72, kv_heads=36, dtype=dtype)
    for dim in (64, 80, 96, 192):
        yield f"heads-of-{dim}", AttentionCase(_FEW, block_size, heads=4, head_dim=dim, dtype=dtype)
    for name, different in (("", {}), ("-softcap", {"softcap": 0.7})):
        case = AttentionCase(_FEW, block_size, numbers="large", dtype=dtype)
        yield f"large-scores{name}", replace(case, **different)  # type: ignore[arg-type]  # as above


def alibi_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """Cases of attention with linear biases by name: every kind of launch, and what biases meet in a layer."""
    for kind, rows in rows_by_kind(block_size).items():
        yield f"{kind}-alibi", AttentionCase(rows, block_size, verifies=kind == "verify", alibi=True, dtype=dtype)
    mixed = AttentionCase(rows_by_kind(block_size)["mixed"], block_size, alibi=True, dtype=dtype)
    yield "mixed-alibi-window-softcap", replace(mixed, window=23, softcap=0.7)
    yield "mixed-alibi-all-heads", replace(mixed, kv_heads=6, head_dim=20)
    yield "mixed-alibi-padded", replace(mixed, padding=3)
    yield "mixed-alibi-long", AttentionCase(_LONG, block_size, alibi=True, dtype=dtype)


def relative_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """Cases of attention with a bias by distance by name: every kind of launch, with keys beyond the last distance that
    is told apart, and what biases meet in a layer."""
    usual = AttentionCase((), block_size, relative_reach=11, dtype=dtype)
    for kind, rows in rows_by_kind(block_size).items():
        yield f"{kind}-relative", replace(usual, rows=rows, verifies=kind == "verify")
    mixed = replace(usual, rows=rows_by_kind(block_size)["mixed"])
    yield "mixed-relative-window-softcap", replace(mixed, window=23, softcap=0.7)
    yield "mixed-relative-all-heads-unscaled", replace(mixed, kv_heads=6, head_dim=20, scale=1.0)
    yield "mixed-relative-padded", replace(mixed, padding=3)
    yield "mixed-relative-one-distance", replace(mixed, relative_reach=1)
    yield "mixed-relative-long", replace(usual, rows=_LONG, relative_reach=129)


def chunked_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """Cases of attention within chunks by name: every kind of launch, with chunks that divide no block and no row, and
    what they meet in a layer."""
    for kind, rows in rows_by_kind(block_size).items():
        yield f"{kind}-chunk", AttentionCase(rows, block_size, verifies=kind == "verify", chunk=21, dtype=dtype)
    mixed = AttentionCase(rows_by_kind(block_size)["mixed"], block_size, chunk=21, dtype=dtype)
    yield "mixed-chunk-one-block", replace(mixed, chunk=block_size)
    yield "mixed-chunk-sinks-softcap", replace(mixed, sinks=True, softcap=0.7)
    yield "mixed-chunk-all-heads", replace(mixed, kv_heads=6, head_dim=20)
    yield "mixed-chunk-padded", replace(mixed, padding=3)
    yield "mixed-chunk-long", AttentionCase(_LONG, block_size, chunk=150, dtype=dtype)


def lookahead_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, AttentionCase]]:
    """Cases of attention that looks ahead by name: every kind of launch, with groups that divide no block and no row,
    and what they meet in a layer. No row is so long that a platform would split it, and a group with it."""
    for kind, rows in rows_by_kind(block_size).items():
        if kind != "verify":
            yield f"{kind}-ahead", AttentionCase(rows, block_size, together=7, dtype=dtype)
    mixed = AttentionCase(rows_by_kind(block_size)["mixed"], block_size, together=7, dtype=dtype)
    yield "mixed-ahead-window", replace(mixed, window=9)
    yield "mixed-ahead-softcap", replace(mixed, softcap=0.7)
    yield "mixed-ahead-all-heads", replace(mixed, kv_heads=6, head_dim=20)
    yield "mixed-ahead-padded", replace(mixed, padding=3)
    long = (1, 533), (1, 130), (9, 290), (50, 300)
    yield "mixed-ahead-long", AttentionCase(long, block_size, together=60, dtype=dtype)


_FEW: Rows = (1, 40), (1, 17), (21, 30)
_LONG: Rows = (1, 533), (1, 130), (9, 290), (133, 133)
"""A little more than 128, 256 and 512 keys and 128 queries: kernels use tiles of 64 or 128, and split many keys."""
_MANY: Rows = tuple((1, 1 + 7 * row % 50) for row in range(70))
"""More than 64 rows, the size that a kernel's grid or table may have."""


def rows_by_kind(block_size: int) -> Mapping[str, Rows]:
    """Rows that end near block boundaries, and far from them."""
    size = block_size
    return {
        "decode": ((1, 1), (1, 40), *((1, length) for length in (size, size + 1, 2 * size))),
        "prefill": ((5, 5), (size, size), (2 * size + 1, 2 * size + 1)),
        "chunks": ((7, 30), (16, 48), (3, size + 3)),
        "verify": ((3, 40), (1, size), (4, size + 4), (2, 3), (1, 50)),
        "mixed": ((1, 50), (1, 3), (1, 1), (19, 19), (4, 36), (size + 2, 2 * size + 2)),
    }


def _sharing(size: int) -> Rows:
    return (1, 2 * size + 1), (1, 3 * size), (5, 2 * size + 5), (size, 4 * size)


# ---- steps and launches, as a platform splits them


Grant = tuple[int, int, int]
"""Tokens to compute, tokens in the cache afterwards, row."""


@dataclass(frozen=True)
class Shaping:
    """How a platform's shape policy changes a case."""

    policy: ShapePolicy

    def allowed(self, case: Case) -> Case:
        """The case, with chunks extended to begin where the rules allow a prompt to be split."""
        multiple, most_decoded = self.policy.rules().chunk_multiple, case.most_decoded
        rows = tuple(
            (tokens if tokens <= most_decoded else tokens + (length - tokens) % multiple, length)
            for tokens, length in case.rows
        )
        return replace(case, rows=rows)

    def holds(self, case: LaunchCase) -> bool:
        """Whether launches may have decode rows as long as the case's."""
        most = self.policy.max_decode_tokens
        return most is None or case.most_decoded <= most

    def launches(
        self, grants: Sequence[Grant], block_size: int, most_decoded: int = 1
    ) -> Iterator[tuple[list[Grant], LaunchShape]]:
        """Splits the grants into steps and the steps into launches, so that each row's tokens come in order.
        most_decoded: rows of at most this many tokens decode."""
        for step in self._steps(grants, most_decoded):
            tokens, lengths = (np.array(column, np.int32) for column in list(zip(*step, strict=True))[:2])
            decode = sum(count <= most_decoded for count in tokens)
            for shape in self.policy.launches(StepShape(decode, tokens, lengths, -(-lengths // block_size))):
                yield step[shape.first : shape.last], shape

    def _steps(self, grants: Sequence[Grant], most_decoded: int) -> Iterator[list[Grant]]:
        cut = [list(self._pieces(grant)) for grant in grants]
        for wave in range(max(map(len, cut))):
            pieces = [row[wave] for row in cut if wave < len(row)]
            yield from self._side_by_side(
                [grant for grant in pieces if grant[0] <= most_decoded],
                [grant for grant in pieces if grant[0] > most_decoded],
            )

    def _pieces(self, grant: Grant) -> Iterator[Grant]:
        """Splits a grant into pieces that have no more tokens than a step may have of one request."""
        tokens, length, row = grant
        most = self.policy.rules().max_tokens_per_request or tokens
        most = max(most - most % self.policy.rules().chunk_multiple, 1)
        done = length - tokens
        while done < length:
            end = min(done + most, length)
            yield end - done, end, row
            done = end

    def _side_by_side(self, decode: list[Grant], prefill: list[Grant]) -> Iterator[list[Grant]]:
        """Steps with as many rows as the rules allow, decode rows first."""
        rules = self.policy.rules()
        most = rules.max_rows or len(decode) + len(prefill)
        few = min(rules.max_prefill_rows or most, most)
        while decode or prefill:
            step, decode = decode[:most], decode[most:]
            if rules.mix_prefill_decode or not step:
                room = min(few, most - len(step))
                step, prefill = step + prefill[:room], prefill[room:]
            yield step


_WHOLE = 113  # for planes of integers; far from any value that is written


def poison(plane: Tensor) -> None:
    """Fills a plane with NaN, or with _WHOLE if it has integers."""
    plane.fill_(torch.nan if plane.is_floating_point() else _WHOLE)


# ---- a trial


TRIAL = "trial"  # the name of a trial's AttentionGroup
SPARE = 3  # blocks that no row has, including the null block
_CHUNK = 512  # tokens of a row that are written at once


KV_SCALES: Mapping[str, float] = MappingProxyType({"k_scale": 2.0 / 448, "v_scale": 1.5 / 448})
"""Of a cache in KV_FP8: keys beyond 2 and values beyond 1.5 are out of range."""


@dataclass
class BlockTrial(ABC):
    """Runs a backend's layer over a cache with the backend's layout, on the device of `ops`. Earlier tokens of the rows
    are written through the layer itself. shaping: how the platform splits and pads launches; None: one launch of its
    exact shape. Results are on the host. A subclass knows what a kind of layer reads and writes."""

    backend: Any
    case: Any
    seed: int = 0
    index_dtype: str = "int32"
    ops: BoundOps = field(default_factory=lambda: BoundOps(REFERENCE, host_device()))
    shaping: Shaping | None = None
    caches: list[Sequence[Tensor]] = field(init=False)
    tables: list[list[int]] = field(init=False)
    # of each row, what attends: [tokens, H, D]
    queries: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        case, spec = self.case, self.case.spec()
        random = torch.Generator().manual_seed(self.seed)
        self.draw(random)
        self.layout = self.backend.kv_cache_layout(case.cache, case.block_size)
        self.constraints = self.backend.constraints(spec)
        blocks = [-(-length // case.block_size) for _, length in case.rows]
        numbers = self.numbers(sum(blocks), random)
        self.tables = [part.tolist() for part in numbers.split(blocks)]
        for table in self.tables[1:]:
            table[: case.shared] = self.tables[0][: case.shared]
        self.num_blocks = int(numbers.max()) + SPARE
        self.group = AttentionGroup(spec, (0,), 0, TRIAL, self.ops.device)
        self.caches = [tuple(self._planes(self.layout))]
        self.layer = self.backend.bind(spec, self.weights, self.ops, self.ops.device)

    @abstractmethod
    def draw(self, random: torch.Generator) -> None:
        """Makes the rows' queries, and what their tokens have in the cache, the same in shared blocks."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """The layer's, on the device."""

    @abstractmethod
    def write(self, launch: Launch, starts: list[int], ends: list[tuple[int, int, int]]) -> None:
        """Writes what tokens first to last of a row have in the cache. ends: (first, last, row), in the launch's
        order; starts: where they begin in the launch."""

    @abstractmethod
    def result(self, q: Tensor) -> Tensor:
        """Where attend() may write what it returns for q."""

    @abstractmethod
    def expected(self) -> list[Tensor]:
        """The expected result of run(), in float64."""

    def numbers(self, count: int, random: torch.Generator) -> Tensor:
        """The numbers of the rows' blocks, [count]."""
        return torch.randperm(count, generator=random) + 1

    def buffer(self, block_bytes: int) -> Tensor:
        """The cache's memory, [blocks, at least block_bytes] uint8, all bits set: NaN in every float format."""
        return torch.empty(self.num_blocks, block_bytes, dtype=torch.uint8, device=self.target).fill_(255)

    def _planes(self, layout: KVLayout) -> Iterator[Tensor]:
        """Views of the memory, laid out as by core: in each block, another layer's bytes come before this one's, unless
        the backend wants dense planes."""
        if self.constraints.dense_planes:
            for plane in layout.planes:
                yield self.buffer(plane.nbytes).view(torch_dtype(plane.dtype)).unflatten(1, plane.shape)
            return
        align = self.constraints.align_bytes
        start = -(-layout.nbytes // align) * align
        memory = self.buffer(2 * start)
        for plane in layout.planes:
            part = memory[:, start : start + plane.nbytes].view(torch_dtype(plane.dtype))
            yield part.unflatten(1, plane.shape)
            start += plane.nbytes

    @property
    def blocks(self) -> list[int]:
        """The blocks of all rows, row by row."""
        return [block for table in self.tables for block in table]

    @property
    def target(self) -> Any:
        return self.ops.device.target

    def run(self) -> list[Tensor]:
        """Writes the earlier tokens, then runs the launch. Returns [tokens, H, D] for each row."""
        shared = self.case.shared * self.case.block_size
        past = [length - tokens for tokens, length in self.case.rows]
        known = [(tokens - (shared if row else 0), tokens, row) for row, tokens in enumerate(past)]
        known = [grant for grant in known if grant[0] > 0]
        for number in range(max((-(-tokens // _CHUNK) for tokens, _, _ in known), default=0)):
            self._write([part for grant in known for part in _chunk(grant, number)])
        self._write(self.grants)
        return self.attended()

    def move(self) -> None:
        """Copies each block of the rows to the place of another one; nothing of the old order is left."""
        old = sorted(set(self.blocks))
        moved = dict(zip(old, [*old[1:], old[0]], strict=True))
        for plane in self.caches[0]:
            plane[list(moved.values())] = plane[old].clone()
        self.tables = [[moved[block] for block in table] for table in self.tables]

    def attended(self, *, into_nan: bool = False) -> list[Tensor]:
        """For each row, attention of its queries over the cache. into_nan: pass an `out` tensor filled with NaN."""

        def attend(q: Tensor, launch: Launch) -> Tensor:
            out = self.result(q).fill_(torch.nan) if into_nan else None
            mixed: Tensor = self.layer.attend(q, self.caches, launch.plans[0], out)
            assert out is None or mixed is out, "the result is not the tensor given as out"
            return mixed

        return self.by_row(self.queries, attend)

    def by_row(self, rows: list[Tensor], call: Callable[[Tensor, Launch], Tensor]) -> list[Tensor]:
        """Passes one tensor per row through all launches. Returns the results by row, on the host. call: [T, ...] of a
        launch -> [T, ...]."""
        found: list[list[Tensor]] = [[] for _ in rows]
        for grants, launch, starts in self.launches(self.grants):
            parts = []
            for tokens, length, row in grants:
                computed, whole = self.case.rows[row]
                first = length - tokens - (whole - computed)
                parts.append(rows[row][first : first + tokens])
            result = call(self.laid(launch, starts, parts), launch).cpu()
            for start, (tokens, _, row) in zip(starts, grants, strict=True):
                found[row].append(result[start : start + tokens])
        return [torch.cat(parts) for parts in found]

    def launches(self, grants: list[Grant]) -> Iterator[tuple[list[Grant], Launch, list[int]]]:
        """The launches that compute these grants: the grants of each, and where each row's tokens start in it."""
        if self.shaping is None:
            yield (grants, *self.launch(grants))
            return
        most_decoded = self.case.most_decoded if grants == self.grants else 1
        for held, shape in self.shaping.launches(grants, self.case.block_size, most_decoded):
            yield (held, *self.launch(held, shape))

    @property
    def grants(self) -> list[Grant]:
        return [(*grant, row) for row, grant in enumerate(self.case.rows)]

    def _write(self, grants: list[Grant]) -> None:
        for held, launch, starts in self.launches(grants):
            self.write(launch, starts, [(length - tokens, length, row) for tokens, length, row in held])

    def laid(self, launch: Launch, starts: list[int], parts: list[Tensor]) -> Tensor:
        """Rows' tensors where the launch has them, NaN in between."""
        whole = torch.full((launch.key.tokens, *parts[0].shape[1:]), torch.nan, dtype=parts[0].dtype)
        for start, part in zip(starts, parts, strict=True):
            whole[start : start + len(part)] = part
        return whole.to(self.target)

    def launch(self, grants: list[Grant], shape: LaunchShape | None = None) -> tuple[Launch, list[int]]:
        """The launch of these grants, with its plan, and where each row's tokens start in it. Lengths on the host are
        as exact as the backend requires. shape: how the platform pads it; None: as the case does."""
        case = self.case
        lengths = [tokens for tokens, _, _ in grants]
        key, stride = self._shape(grants) if shape is None else (shape.key, shape.stride)
        starts = [stride * i if stride else sum(lengths[:i]) for i in range(len(grants))]
        rows, tokens, columns = key.rows, key.tokens, key.blocks
        table = np.zeros((rows, columns), self.index_dtype)
        slots = np.zeros(tokens, self.index_dtype)
        positions = np.zeros(tokens, np.int32)
        for i, (count, length, row) in enumerate(grants):
            blocks = self.tables[row][:columns]  # a launch has as many as its lengths need
            table[i, : len(blocks)] = blocks
            if case.reach is not None:  # blocks behind have been freed
                table[i, : max(length - count - case.reach + 1, 0) // case.block_size] = 0
            at = np.arange(length - count, length)
            positions[starts[i] : starts[i] + count] = at
            slots[starts[i] : starts[i] + count] = (
                table[i, at // case.block_size] * case.block_size + at % case.block_size
            )
        query_lens, seq_lens = np.zeros((2, rows), np.int32)
        query_lens[: len(grants)] = lengths
        # Padding begins where the last row's tokens end, or at its stride.
        ends = (
            [stride * i for i in range(len(grants), rows + 1)] if stride else [sum(lengths)] * (rows + 1 - len(grants))
        )
        query_start_loc = np.array([*starts, *ends], np.int32)
        seq_lens[: len(grants)] = [length for _, length, _ in grants]
        last = np.where(query_lens > 0, query_start_loc[:-1] + query_lens - 1, 0)

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(values).to(self.target)

        launch = Launch(
            key=key,
            num_rows=len(grants),
            num_tokens=sum(lengths),
            rows=tensor(np.arange(rows)),
            tokens=tensor(np.zeros(tokens, np.int32)),
            positions=tensor(positions),
            query_start_loc=tensor(query_start_loc),
            query_lens=tensor(query_lens),
            seq_lens=tensor(seq_lens),
            seq_lens_host=seq_lens,
            query_start_loc_host=query_start_loc,
            query_lens_host=query_lens,
            slot_mapping=[tensor(slots)],
            block_tables=[tensor(table)],
            logits_indices=tensor(np.arange(tokens) if key.kind == "verify" else last),
            block_tables_host=[table.astype(np.int32) if self.constraints.host_tables else None],
            block_sizes=(case.block_size,),
            windows=(case.reach,),
            columns=self.columns(grants, starts, tokens),
        )
        launch.plans = [self.backend.plan(launch, self.group, None)]
        return launch, starts

    def columns(self, grants: list[Grant], starts: list[int], tokens: int) -> dict[str, Tensor]:
        """Launch.columns of a launch of these grants and so many tokens. Default: none."""
        return {}

    def _shape(self, grants: list[Grant]) -> tuple[LaunchKey, int]:
        """The key of one launch of these grants, and its stride."""
        case, padding = self.case, self.case.padding
        lengths = [tokens for tokens, _, _ in grants]
        stride = case.stride if case.stride >= max(lengths) else 0
        tokens = (stride * len(grants) if stride else sum(lengths)) + padding
        columns = max(len(self.tables[row]) for *_, row in grants) + 1
        kind: Kind = "verify" if case.verifies else "mixed"
        return LaunchKey(kind, len(grants) + padding, max(lengths), columns, tokens), stride


def _chunk(grant: Grant, number: int) -> list[Grant]:
    """The part of a grant that is written in a launch of this number; none if it has fewer."""
    tokens, length, row = grant
    first = length - tokens + number * _CHUNK
    return [(min(length - first, _CHUNK), min(first + _CHUNK, length), row)] if first < length else []


@dataclass
class AttentionTrial(BlockTrial):
    """Of attention over keys and values."""

    backend: AttentionBackend
    case: AttentionCase

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.layer, AttentionLayer)

    def draw(self, random: torch.Generator) -> None:
        case, past = self.case, self.case.shared * self.case.block_size

        def heads(tokens: int, number: int, size: float = 1.0) -> Tensor:
            drawn = torch.randn(tokens, number, case.head_dim, generator=random)
            return (drawn * size).to(torch_dtype(case.dtype))

        size = case.small if case.numbers == "small" else 1.0
        self.keys, self.values = (
            [self._as_cached(heads(length, case.kv_heads, size)) for _, length in case.rows] for _ in range(2)
        )
        for rows in (self.keys, self.values):
            for row in rows[1:]:
                row[:past] = rows[0][:past]
        self.queries = [heads(tokens, case.heads, 1 / size) for tokens, _ in case.rows]
        if case.numbers == "small":
            for row in self.keys:
                row[len(row) // 2] = 0
        if case.numbers == "large":
            self._enlarge(random)
        self.sinks = (2 * torch.randn(case.heads, generator=random)).to(torch_dtype(case.dtype))
        self.relative_bias = torch.randn(case.heads, case.relative_reach, generator=random)

    def columns(self, grants: list[Grant], starts: list[int], tokens: int) -> dict[str, Tensor]:
        if self.case.together is None:
            return {}
        ahead = np.zeros(tokens, np.int32)
        for start, (count, _, _) in zip(starts, grants, strict=True):
            ahead[start : start + count] = self.case.ahead(count)
        return {AHEAD: torch.from_numpy(ahead).to(self.target)}

    def write(self, launch: Launch, starts: list[int], ends: list[tuple[int, int, int]]) -> None:
        k, v = (
            self.laid(launch, starts, [every[row][first:last] for first, last, row in ends])
            for every in (self.keys, self.values)
        )
        self.layer.write(k, v, self.caches, launch.plans[0])

    def result(self, q: Tensor) -> Tensor:
        return torch.empty_like(q)

    def _enlarge(self, random: torch.Generator) -> None:
        """Queries and keys in one direction, so that scores are 1,200 apart before they are scaled, and up to 100,000;
        exact in every dtype."""
        sign = torch.randint(0, 2, (self.case.head_dim,), generator=random) * 2.0 - 1
        for row in self.queries:
            row[:] = sign * (2400 / self.case.head_dim)
        for row in self.keys:
            place = torch.randperm(len(row), generator=random)[:, None, None]
            row[:] = (30 + 0.5 * place) * sign

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The layer's weights: its sinks, its bias by distance, and the scales of a cache in KV_FP8, by which some keys
        and values are out of range."""
        found = {"sinks": self.sinks.to(self.target)} if self.case.sinks else {}
        if self.case.relative_reach:
            found["relative_bias"] = self.relative_bias.to(self.target)
        if self.case.quant == KV_FP8:
            found |= {name: torch.full((1,), scale, device=self.target) for name, scale in KV_SCALES.items()}
        return found

    def _as_cached(self, rows: Tensor) -> Tensor:
        """Rounds rows to the dtype of the cache, if that has no scales."""
        return rows if self.case.quant is not None else rows.to(torch_dtype(self.case.cache_dtype)).to(rows.dtype)

    def meaning(self, rows: Tensor, scale: str) -> Tensor:
        """Keys or values [tokens, Hk, D] as the cache stores them, in float64. scale: "k_scale" or "v_scale"."""
        if self.case.quant is None:
            return rows.double()
        if self.case.quant == KV_FP8:
            limit = torch.finfo(torch.float8_e4m3fn).max
            divided = (rows.float() / KV_SCALES[scale]).clamp(-limit, limit)
            return divided.to(torch.float8_e4m3fn).double() * KV_SCALES[scale]
        kept = quantize(QuantizeSpec(self.case.head_dim, self.case.dtype, ActSpec("int8", "token")), rows)
        return kept.data.double() * kept.scale.double()

    def sums(self) -> list[Tensor]:
        """For each row [tokens, H], the log-sum-exp that attend() returns with lse=True."""

        def attend(q: Tensor, launch: Launch) -> Tensor:
            mixed = self.layer.attend(q, self.caches, launch.plans[0], lse=True)
            return mixed[1]

        return self.by_row(self.queries, attend)

    def expected(self) -> list[Tensor]:
        return self._expected

    @cached_property
    def _expected(self) -> list[Tensor]:
        mixed = []
        for scores, values in zip(self._scores, self.values, strict=True):
            weights = torch.exp(scores - self._sum(scores)[..., None])
            mixed.append((weights @ self._of_heads(self.meaning(values, "v_scale"))).transpose(0, 1))
        return mixed

    def expected_sums(self) -> list[Tensor]:
        """The expected result of sums(), in float64."""
        return [self._sum(scores).T for scores in self._scores]

    def _of_heads(self, keys: Tensor) -> Tensor:
        """[K, Hk, D] -> [H, K, D]."""
        return keys.transpose(0, 1).repeat_interleave(self.case.heads // self.case.kv_heads, 0)

    def _sum(self, scores: Tensor) -> Tensor:
        """The log-sum-exp of scores [H, Q, K], sinks included: [H, Q]."""
        if self.case.sinks:
            sinks = self.sinks.double()[:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat((scores, sinks), dim=-1)
        return torch.logsumexp(scores, -1)

    @cached_property
    def _scores(self) -> list[Tensor]:
        """For each row, the scores of its queries [H, Q, K], -inf for keys that a query does not see."""
        case, found = self.case, []
        for queries, kept in zip(self.queries, self.keys, strict=True):
            keys = self._of_heads(self.meaning(kept, "k_scale"))
            scores = queries.double().transpose(0, 1) @ keys.mT * case.factor
            if case.softcap is not None:
                scores = torch.tanh(scores / case.softcap) * case.softcap
            ahead = torch.arange(len(kept)) - torch.arange(len(kept) - len(queries), len(kept))[:, None]
            if case.alibi:
                scores = scores + torch.tensor(case.slopes, dtype=torch.float64)[:, None, None] * ahead
            if case.relative_reach:
                last = case.relative_reach - 1
                scores = scores + self.relative_bias.double()[:, ahead.clamp(-last, 0) + last]
            unseen = ahead > torch.from_numpy(case.ahead(len(queries)))[:, None]
            if case.window is not None:
                unseen = unseen | (ahead <= -case.window)
            if case.chunk is not None:
                keys = torch.arange(len(kept))
                unseen = unseen | (keys // case.chunk != (keys - ahead) // case.chunk)
            found.append(scores.masked_fill(unseen, -torch.inf))
        return found
