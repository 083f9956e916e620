"""Which layers are computed by copied.py, and how it is launched. Its compilers divide programs among warps, and some
versions did so wrongly; so before a kind of layer relies on it, a small launch is compared with that of prefill.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from tessera.platform import LayerSpec
from tessera_triton import copied
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.tiles import CopiedTile, copied_tiles

log = logging.getLogger("tessera.triton")

ERROR = 0.02
"""By how much of the largest number a result may be off."""

_DTYPES = ("bfloat16", "float16")
_LEAST = 16  # elements of a head, which matrix instructions take at once
_SIZE = 64  # of a block in the comparison
_TOKENS, _KEYS = 70, 130  # of its row, which fill no tile
_ALIGNED = 8  # elements of 16 bits in the 16 bytes at which copies begin


class Rows(NamedTuple):
    """Of a launch. first: the row that it begins with. rows, tokens: of all. tiles: programs of a head, by the queries
    of each."""

    table: Tensor
    starts: Tensor
    lengths: Tensor
    ends: Tensor
    first: int
    rows: int
    tokens: int
    tiles: Callable[[int], int]


@dataclass(frozen=True)
class Copying:
    """Launches copied_tiles for one kind of layer."""

    facts: DeviceFacts
    launch: Launcher
    spec: LayerSpec

    @property
    def able(self) -> bool:
        """Whether the device and the kernel take such a layer."""
        spec, cache = self.spec, self.spec.cache
        whole = spec.head_dim == power_of_two(spec.head_dim) and spec.head_dim >= _LEAST
        kept = getattr(cache, "dtype", None) == spec.dtype and spec.dtype in _DTYPES
        return whole and kept and copied_tiles(self.facts, spec.head_dim) is not None

    @property
    def tiles(self) -> tuple[CopiedTile, CopiedTile]:
        """Of few queries, and of many."""
        found = copied_tiles(self.facts, self.spec.head_dim)
        assert found is not None, "able says so"
        return found

    def tile(self, tokens: int) -> CopiedTile:
        """For a launch of so many. Those of many queries would leave some processors without a program."""
        few, many = self.tiles
        return many if -(-tokens // many.queries) * self.spec.num_heads >= self.facts.processors else few

    def takes(self, q: Tensor, size: int) -> bool:
        """size: tokens of a block."""
        dense = q.stride(1) == self.spec.head_dim and not (q.stride(0) % _ALIGNED or q.storage_offset() % _ALIGNED)
        return dense and size % self.tiles[0].keys == 0

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, of: Rows, factors: tuple[float, float],
        out: Tensor, sums: Tensor | None, tile: CopiedTile,
    ) -> None:  # fmt: skip
        """keys, values [blocks, token, head, dim], dense. factors: the scale of scores, and their cap."""
        spec = self.spec
        # Descriptors lie in memory that Triton asks for, in the thread that launches.
        triton.set_allocator(partial(_scratch, q.device))
        self.launch(
            copied.copied_tiles, (of.tiles(tile.queries), spec.num_heads),
            q, q.stride(0), keys, values, of.table, of.table.stride(0), of.starts, of.lengths, of.ends, sinks, out,
            out.stride(0), out.stride(1), q if sums is None else sums, *factors, of.first, of.rows, len(q), len(keys),
            HEADS=spec.num_heads, GROUP=spec.num_heads // spec.num_kv_heads, DIM=spec.head_dim, SIZE=keys.shape[1],
            WINDOW=spec.window or 0, CAPPED=spec.softcap is not None, SINKS=spec.sinks, SUMS=sums is not None,
            SPECIALIZES=tile.specializes, BLOCK_M=tile.queries, BLOCK_N=tile.keys, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip


def _scratch(device: torch.device, size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device=device)


# ---- the comparison

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Rows, Tensor], None]
"""Attention of q over keys and values, with sinks, written into the last argument."""


def compared(spec: LayerSpec, attend: Attend, others: Sequence[Attend], device: Any) -> bool:
    """Whether all others give what `attend` does, for random numbers. If not, the log says so in one line."""
    random, dtype = torch.Generator(device).manual_seed(0), getattr(torch, spec.dtype)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=device).to(dtype)

    def whole(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    blocks = -(-_KEYS // _SIZE)
    planes = [numbers(1 + blocks, _SIZE, spec.num_kv_heads, spec.head_dim) for _ in range(2)]
    for plane in planes:
        plane[blocks, _KEYS % _SIZE :] = torch.nan  # what was never written
    table = whole(*range(1, 1 + blocks))[None]
    of = Rows(
        table, whole(0, _TOKENS), whole(_TOKENS), whole(_KEYS), 0, 1, _TOKENS, lambda queries: -(-_TOKENS // queries)
    )
    q, sinks = numbers(_TOKENS, spec.num_heads, spec.head_dim), numbers(spec.num_heads)

    def result(of_one: Attend) -> Tensor:
        out = torch.empty_like(q)
        of_one(q, *planes, sinks, of, out)
        return out.float()

    expected = result(attend)
    try:
        most = ERROR * expected.abs().amax()
        right = all(bool((result(one) - expected).abs().amax() <= most) for one in others)  # NaN is not
        why = "" if right else "it gives other numbers"
    except Exception as error:  # noqa: BLE001 - a compiler may raise anything
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    if why:
        log.warning("attention does not copy keys by hardware for heads of %d here: %s", spec.head_dim, why)
    return not why
