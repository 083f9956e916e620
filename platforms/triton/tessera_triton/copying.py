"""Which layers copied.py computes, and how it is launched. Triton may divide its programs among specialized warps, and
some versions did so wrongly; so before a kind of layer relies on it, a small launch is compared with one of prefill.py.
Specialized warps are left to who asks for them until they were measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from tessera.platform import LayerSpec, PlatformError, Reason
from tessera_triton.copied import copied_tiles
from tessera_triton.environment import COPIES
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.tiles import CopiedTile, tiles_that_copy

OFF, PLAIN, SPECIALIZED = CHOICES = ("off", "plain", "specialized")
"""Of the environment variable COPIES."""

ERROR = 0.02
"""By how much of the largest number a result may be off."""

_DTYPES = ("bfloat16", "float16")
_LEAST = 16  # elements of a head, which matrix instructions take at once
_ALIGNED = 8  # elements of 16 bits in the 16 bytes at which copies begin


class Rows(NamedTuple):
    """The rows of a launch."""

    # block_tables of the launch
    table: Tensor
    # query_start_loc of the launch
    starts: Tensor
    # query_lens of the launch
    lengths: Tensor
    # seq_lens of the launch
    ends: Tensor
    # the row that they begin with
    first: int
    # of all
    rows: int
    # of all rows
    tokens: int
    # programs of a head, by the queries of each
    tiles: Callable[[int], int]


Attend = Callable[[Tensor, Sequence[Any], int, Tensor, Rows, Tensor, Tensor | None], None]
"""Attention of q over the planes of a cache, as CachedLayer has them, in blocks of so many tokens, with sinks, of rows,
into out and, unless it is None, its log-sum-exp."""


def chosen_copies() -> str:
    """The one of CHOICES that the environment names. Raises PlatformError if it names none of them."""
    choice = os.environ.get(COPIES, PLAIN)
    if choice not in CHOICES:
        raise PlatformError(f"{COPIES} is {choice[:40]!r}; set it to one of {', '.join(CHOICES)}.")
    return choice


@dataclass(frozen=True)
class Copying:
    """Launches copied_tiles for one kind of layer. factors: the scale of scores, and their cap. specialize: whether
    warps are specialized where that helps."""

    facts: DeviceFacts
    launch: Launcher
    spec: LayerSpec
    factors: tuple[float, float]
    specialize: bool

    @property
    def able(self) -> bool:
        """Whether the device and the kernel take such a layer."""
        spec, cache = self.spec, self.spec.cache
        whole = spec.head_dim == power_of_two(spec.head_dim) and spec.head_dim >= _LEAST
        kept = getattr(cache, "dtype", None) == spec.dtype and spec.dtype in _DTYPES
        return whole and kept and self._possible_tiles is not None

    def takes(self, q: Tensor, size: int) -> bool:
        """Whether descriptors allow these queries, and blocks of so many tokens."""
        dense = q.stride(1) == self.spec.head_dim and not (q.stride(0) % _ALIGNED or q.storage_offset() % _ALIGNED)
        return dense and size % self._tiles[0].keys == 0

    def __call__(
        self, q: Tensor, planes: Sequence[Any], size: int, sinks: Tensor, rows: Rows, out: Tensor, sums: Tensor | None
    ) -> None:
        """As Attend says."""
        self._launch(self._tile(rows.tokens), q, planes, size, sinks, rows, out, sums)

    @property
    def _tiles(self) -> tuple[CopiedTile, CopiedTile]:
        """Of few queries, and of many."""
        found = self._possible_tiles
        assert found is not None, "able says so"
        return found

    @property
    def _possible_tiles(self) -> tuple[CopiedTile, CopiedTile] | None:
        return tiles_that_copy(self.facts, self.spec.head_dim, specialize=self.specialize)

    def _tile(self, tokens: int) -> CopiedTile:
        """For a launch of so many. Those of many queries would leave some processors without a program."""
        few, many = self._tiles
        return many if -(-tokens // many.queries) * self.spec.num_heads >= self.facts.processors else few

    def _launch(
        self, tile: CopiedTile, q: Tensor, planes: Sequence[Any], size: int, sinks: Tensor, rows: Rows, out: Tensor,
        sums: Tensor | None,
    ) -> None:  # fmt: skip
        spec, (keys, _, values, *_) = self.spec, planes
        # Descriptors lie in memory that Triton asks for, in the thread that launches.
        triton.set_allocator(partial(_scratch, q.device))
        self.launch(
            copied_tiles, (rows.tiles(tile.queries), spec.num_heads),
            q, q.stride(0), keys, values, rows.table, rows.table.stride(0), rows.starts, rows.lengths, rows.ends, sinks,
            out, out.stride(0), out.stride(1), q if sums is None else sums, *self.factors, rows.first, rows.rows,
            len(q), len(keys), HEADS=spec.num_heads, GROUP=spec.num_heads // spec.num_kv_heads, DIM=spec.head_dim,
            SIZE=size, WINDOW=spec.window or 0, CAPPED=spec.softcap is not None, SINKS=spec.sinks,
            SUMS=sums is not None, SPECIALIZES=tile.specializes, BLOCK_M=tile.queries, BLOCK_N=tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def difference(self, load: Attend, device: Any) -> Reason | None:
        """Why launches of the two tiles do not give what `load` does, for random numbers; None if they do. Raises
        torch.OutOfMemoryError."""
        compared = _Compared.on(device, self.spec)
        expected = compared.result(load)
        try:
            others = [compared.result(partial(self._launch, tile)) for tile in self._tiles]
            most = ERROR * expected.abs().amax()
            right = all(bool((other - expected).abs().amax() <= most) for other in others)  # NaN is not
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return None if right else "it gives other numbers"


def _scratch(device: torch.device, size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device=device)


# ---- the comparison

_SIZE = 64  # of a block
_TOKENS, _KEYS = 140, 330  # of its row: the last tiles are not full, and each place in shared memory is used again
_BEHIND = 256  # tokens that a wrong kernel may write behind the result


class _Compared(NamedTuple):
    """What is computed: one row, with numbers that are equal on each device."""

    q: Tensor
    planes: Sequence[Any]
    sinks: Tensor
    rows: Rows

    @classmethod
    def on(cls, device: Any, spec: LayerSpec) -> _Compared:
        random, dtype = torch.Generator().manual_seed(0), getattr(torch, spec.dtype)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random).to(dtype)

        def whole(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32).to(device)

        blocks = -(-_KEYS // _SIZE)
        keys, values = (numbers(1 + blocks, _SIZE, spec.num_kv_heads, spec.head_dim) for _ in range(2))
        for plane in (keys, values):
            plane[blocks, _KEYS % _SIZE :] = torch.nan  # what was never written
        keys, values = keys.to(device), values.to(device)
        rows = Rows(
            whole(*range(1, 1 + blocks))[None], whole(0, _TOKENS), whole(_TOKENS), whole(_KEYS), 0, 1, _TOKENS,
            lambda queries: -(-_TOKENS // queries),
        )  # fmt: skip
        planes = keys, keys.stride(0), values, values.stride(0), keys, keys, keys.stride(0)
        q, sinks = numbers(_TOKENS, spec.num_heads, spec.head_dim), numbers(spec.num_heads)
        return cls(q.to(device), planes, sinks.to(device), rows)

    def result(self, attend: Attend) -> Tensor:
        q = self.q
        out = q.new_zeros(_TOKENS + _BEHIND, *q.shape[1:])[:_TOKENS]
        attend(q, self.planes, _SIZE, self.sinks, self.rows, out, None)
        return out.float()
