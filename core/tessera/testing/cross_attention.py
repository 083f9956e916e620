"""Tests of cross attention: rows that begin with encoders of unlike lengths, and a backend's layer over a cache in
which every slot that was not written holds NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import REFERENCE
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import (
    FIRST_SOURCE,
    NUM_SOURCES,
    SOURCES,
    AttentionBackend,
    AttentionGroup,
    CrossLayer,
    CrossSpec,
    LayerSpec,
)
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.platform.shapes import LaunchShape
from tessera.runner.input_layout import InputLayout
from tessera.testing.attention import SPARE, TRIAL, Grant, Shaping
from tessera.testing.reference import host_device


@dataclass(frozen=True)
class CrossCase:
    """Rows that begin in one launch, and decode in the next."""

    # (tokens, positions of the encoder) of each row, those of one token first.
    rows: tuple[tuple[int, int], ...]
    block_size: int = 16
    heads: int = 6
    kv_heads: int = 6
    head_dim: int = 12
    # Tokens between the starts of rows, so that there is padding between them; 0: no gaps.
    stride: int = 0
    # Padding rows, and tokens, at the end.
    padding: int = 0
    dtype: str = "float32"
    # Of queries and keys.
    size: float = 1.0
    # Whether each token sees a range of the positions, which may be empty.
    ranged: bool = False

    @property
    def cache(self) -> CrossSpec:
        """What the layer keeps."""
        return CrossSpec(self.kv_heads, self.head_dim, self.dtype, length=max(length for _, length in self.rows))

    def spec(self) -> LayerSpec:
        kind = "ranged_cross_attention" if self.ranged else "cross_attention"
        return LayerSpec(0, kind, self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, self.dtype, self.cache)


_ROWS = (1, 33), (1, 1), (3, 64), (17, 130), (40, 7)

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
        "grouped": {"kv_heads": 2},
        "heads-of-64": {"heads": 2, "kv_heads": 2, "head_dim": 64},
        "spaced": {"stride": 43, "padding": 2},
        "padded": {"padding": 3},
        "without-an-encoder": {"rows": ((1, 0), (2, 5), (3, 0))},
        "many-rows": {"rows": tuple((1, 1 + 7 * row % 50) for row in range(40))},
        "long": {"rows": ((1, 1500), (4, 1500), (9, 700))},
        "large-scores": {"size": 4.0},
        "ranged": {"ranged": True, "kv_heads": 2},
        "ranged-spaced": {"ranged": True, "stride": 43, "padding": 2},
        "ranged-without-an-encoder": {"ranged": True, "rows": ((1, 0), (2, 5), (3, 0))},
    }
)
"""How each case differs from the plain one, by name."""


def cross_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, CrossCase]]:
    """Cases by name."""
    for name, different in VARIANTS.items():
        yield name, replace(CrossCase(_ROWS, block_size, dtype=dtype), **different)


@dataclass
class CrossTrial:
    """Runs a backend's layer on the device of `ops`. shaping: how the platform splits and pads launches; None: launches
    of the case's shape. Results are on the host."""

    backend: AttentionBackend
    case: CrossCase
    seed: int = 0
    index_dtype: str = "int32"
    ops: BoundOps = field(default_factory=lambda: BoundOps(REFERENCE, host_device()))
    shaping: Shaping | None = None

    def __post_init__(self) -> None:
        case, random = self.case, torch.Generator().manual_seed(self.seed)

        def drawn(tokens: int, heads: int, size: float = 1.0) -> Tensor:
            return (torch.randn(tokens, heads, case.head_dim, generator=random) * size).to(torch_dtype(case.dtype))

        self.keys = [drawn(length, case.kv_heads, case.size) for _, length in case.rows]
        self.values = [drawn(length, case.kv_heads) for _, length in case.rows]
        self.queries = [drawn(tokens + 1, case.heads, case.size) for tokens, _ in case.rows]
        # [tokens + 1, 2] of each row: the first position that a token sees, and how many; not all differ.
        self.ranges = [_ranges(tokens + 1, length, random) for tokens, length in case.rows]
        blocks = [-(-length // case.block_size) for _, length in case.rows]
        numbers = torch.randperm(sum(blocks), generator=random) + 1
        self.tables = [part.tolist() for part in numbers.split(blocks)]
        layout = self.backend.kv_cache_layout(case.cache, case.block_size)
        self.caches: list[Sequence[Tensor]] = [
            tuple(
                torch.empty(sum(blocks) + SPARE, plane.nbytes, dtype=torch.uint8, device=self.target)
                .fill_(255)
                .view(torch_dtype(plane.dtype))
                .unflatten(1, plane.shape)
                for plane in layout.planes
            )
        ]
        self.host_tables = self.backend.constraints(case.spec()).host_tables
        self.group = AttentionGroup(case.spec(), (0,), 0, TRIAL, self.ops.device)
        layer = self.backend.bind(case.spec(), {}, self.ops, self.ops.device)
        assert isinstance(layer, CrossLayer)
        self.layer = layer

    @property
    def target(self) -> Any:
        return self.ops.device.target

    def run(self) -> list[Tensor]:
        """[tokens + 1, H D] of each row: of the launch in which it begins, then of one in which it decodes."""
        rows = self.case.rows
        first = self._mixed([(tokens, tokens, row) for row, (tokens, _) in enumerate(rows)], begins=True)
        later = self._mixed([(1, tokens + 1, row) for row, (tokens, _) in enumerate(rows)], begins=False)
        return [torch.cat(parts) for parts in zip(first, later, strict=True)]

    def _mixed(self, grants: list[Grant], *, begins: bool) -> list[Tensor]:
        """begins: the rows' encoders are written in their launch."""
        found: dict[int, list[Tensor]] = {row: [] for _, _, row in grants}
        begun: set[int] = set()
        for held, shape in self._shapes(grants):
            new = [row for _, _, row in held if begins and row not in begun]
            begun.update(new)
            launch, starts = self.launch(held, shape, new)
            if len(launch.slot_mapping[0]):
                k, v = (torch.cat([every[row] for row in new]).to(self.target) for every in (self.keys, self.values))
                self.layer.write(k, v, self.caches, launch.plans[0])
            x = torch.full((launch.key.tokens, self.queries[0][0].numel()), torch.nan, dtype=self.queries[0].dtype)
            for start, (tokens, length, row) in zip(starts, held, strict=True):
                x[start : start + tokens] = self.queries[row][length - tokens : length].flatten(1)
            mixed = self.layer.fused(x.to(self.target), launch.positions, self.caches, launch.plans[0]).cpu()
            for start, (tokens, _, row) in zip(starts, held, strict=True):
                found[row].append(mixed[start : start + tokens])
        return [torch.cat(parts) for parts in found.values()]

    def _shapes(self, grants: list[Grant]) -> Iterator[tuple[Sequence[Grant], LaunchShape]]:
        case = self.case
        if self.shaping is not None:
            yield from self.shaping.launches(grants, case.block_size)
            return
        lengths, rows = [tokens for tokens, _, _ in grants], len(grants) + case.padding
        stride = case.stride if max(lengths) > 1 else 0
        tokens = rows * stride if stride else sum(lengths) + case.padding
        yield grants, LaunchShape(LaunchKey("mixed", rows, max(lengths), 1, tokens), 0, len(grants), stride)

    def launch(self, grants: Sequence[Grant], shape: LaunchShape, new: Sequence[int]) -> tuple[Launch, list[int]]:
        """The launch of these grants with its plan, and where each row's tokens start in it. new: the rows that begin
        in it."""
        case, size = self.case, self.case.block_size
        counts = np.array([tokens for tokens, _, _ in grants], np.int32)
        ends = np.array([length for _, length, _ in grants], np.int32)
        layout = InputLayout.build(shape, np.arange(len(grants), dtype=np.int32), counts, len(grants))
        seq_lens = layout.by_row(ends)
        sources = layout.by_row(np.array([case.rows[row][1] for _, _, row in grants], np.int32))
        table = np.zeros((shape.key.rows, -(-case.cache.length // size)), self.index_dtype)
        for place, (_, _, row) in enumerate(grants):
            table[place, : len(self.tables[row])] = self.tables[row]
        slots = [block * size + at for row in new for block in self.tables[row] for at in range(size)]
        kept = [at < case.rows[row][1] for row in new for at in range(size * len(self.tables[row]))]

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.target)

        ranges = np.zeros((shape.key.tokens, 2), np.int32)
        for start, (tokens, length, row) in zip(layout.query_start_loc.tolist(), grants, strict=False):
            ranges[start : start + tokens] = self.ranges[row][length - tokens : length]
        seen = {FIRST_SOURCE: tensor(ranges[:, 0]), NUM_SOURCES: tensor(ranges[:, 1])} if case.ranged else {}
        launch = Launch(
            key=shape.key,
            num_rows=layout.num_rows,
            num_tokens=layout.num_tokens,
            rows=tensor(layout.rows),
            tokens=tensor(np.zeros(shape.key.tokens, np.int32)),
            positions=tensor(layout.positions(ends - counts)),
            query_start_loc=tensor(layout.query_start_loc),
            query_lens=tensor(layout.query_lens),
            seq_lens=tensor(seq_lens),
            seq_lens_host=seq_lens,
            query_start_loc_host=layout.query_start_loc,
            query_lens_host=layout.query_lens,
            slot_mapping=[tensor(np.array(slots, self.index_dtype)[np.array(kept, bool)])],
            block_tables=[tensor(table)],
            logits_indices=tensor(layout.logits_indices),
            block_tables_host=[table.astype(np.int32) if self.host_tables else None],
            block_sizes=(size,),
            windows=(None,),
            columns={SOURCES: tensor(sources), **seen},
        )
        launch.plans = [self.backend.plan(launch, self.group, None)]
        return launch, layout.query_start_loc[: len(grants)].tolist()

    def expected(self) -> list[Tensor]:
        """The expected result of run(), in float64."""
        case, found = self.case, []
        for q, k, v, ranges in zip(self.queries, self.keys, self.values, self.ranges, strict=True):
            if not len(k):
                found.append(torch.zeros(len(q), case.heads * case.head_dim, dtype=torch.float64))
                continue
            keys, values = (
                one.double().transpose(0, 1).repeat_interleave(case.heads // case.kv_heads, dim=0) for one in (k, v)
            )
            scores = q.double().transpose(0, 1) @ keys.mT * case.head_dim**-0.5
            if case.ranged:
                first, number = torch.from_numpy(ranges).unbind(1)
                place = torch.arange(len(k))
                hidden = (place < first[:, None]) | (place >= (first + number)[:, None])
                scores = scores.masked_fill(hidden, -torch.inf)
            found.append((scores.softmax(-1).nan_to_num(0.0) @ values).transpose(0, 1).flatten(1))
        return found


def _ranges(tokens: int, length: int, random: torch.Generator) -> Array:
    """[tokens, 2] int32, in which every third is as the one before it."""
    ends = torch.randint(length + 1, (tokens, 2), generator=random).sort(1).values.numpy().astype(np.int32)
    ends[2::3] = ends[1::3][: len(ends[2::3])]
    return np.stack([ends[:, 0], ends[:, 1] - ends[:, 0]], axis=1)
