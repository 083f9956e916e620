"""Bringing rows together by their owner (the expert or the adapter that computes them), so that each tile of a grouped
product has one owner. Counting, prefix sums and placing are done on the device, into buffers whose sizes follow from
shapes. MegaBlocks, arXiv:2211.15841, has the idea of tiles per owner.

Where a row lies among those of its owner is left to atomics, and may differ from run to run. No result depends on it,
because a row of a product is computed alike wherever it lies."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera_triton.facts import Launcher, power_of_two

_BLOCK = 128  # rows that a program places
_ALIGNED = 4  # int32 in 16 bytes


@triton.jit(do_not_specialize=["rows"])
def _count(owners, counts, ranks, rows, first, number, BLOCK: tl.constexpr):
    """counts: the rows of each owner. ranks: how many of its owner came before a row."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owner = tl.load(owners + row, mask=row < rows, other=first - 1) - first
    owned = (owner >= 0) & (owner < number)
    rank = tl.atomic_add(counts + owner, 1, mask=owned, sem="relaxed")
    tl.store(ranks + row, rank, mask=owned)


@triton.jit(do_not_specialize=["rows"])
def _place(
    owners, counts, ranks, tile_owners, tile_rows, rows, first, number,
    BLOCK: tl.constexpr, OWNERS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owner = tl.load(owners + row, mask=row < rows, other=first - 1) - first
    owned = (owner >= 0) & (owner < number)
    every = tl.arange(0, OWNERS)
    tiles = tl.cdiv(tl.load(counts + every, mask=every < number, other=0), TILE)
    starts = (tl.cumsum(tiles, 0) - tiles) * TILE
    start = tl.sum(tl.where(every[None, :] == owner[:, None], starts[None, :], 0), 1)
    rank = tl.load(ranks + row, mask=owned, other=0)
    tl.store(tile_rows + start + rank, row + 1, mask=owned)
    tl.store(tile_owners + (start + rank) // TILE, owner + 1, mask=owned & (rank % TILE == 0))


class Tiles(NamedTuple):
    """owners [tiles] int32: one more than the owner of a tile's rows; 0 if the tile has none. rows [tiles * size]
    int32: one more than the row at a place; 0 if there is none. size: places of a tile."""

    owners: Tensor
    rows: Tensor
    size: int


def tiles_of(launch: Launcher, owners: Tensor, size: int, number: int, first: int = 0) -> Tiles:
    """owners [rows] int32, at least one row: of each row; rows whose owner is not one of the `number` that begin with
    `first` have no place."""
    rows = len(owners)
    tiles = min(rows, (rows + number * (size - 1)) // size)
    # Each begins at a multiple of 16 bytes, or kernels would be compiled anew for where they begin.
    begins = [0, -(-number // _ALIGNED) * _ALIGNED]
    begins.append(begins[1] + -(-tiles // _ALIGNED) * _ALIGNED)
    zeros = torch.zeros(begins[2] + tiles * size, dtype=torch.int32, device=owners.device)
    counts, tile_owners, tile_rows = zeros, zeros[begins[1] : begins[1] + tiles], zeros[begins[2] :]
    ranks = torch.empty_like(owners)
    grid = (-(-rows // _BLOCK),)
    launch(_count, grid, owners, counts, ranks, rows, first, number, BLOCK=_BLOCK, num_warps=4)
    launch(
        _place, grid, owners, counts, ranks, tile_owners, tile_rows, rows, first, number,
        BLOCK=_BLOCK, OWNERS=power_of_two(number), TILE=size, num_warps=4,
    )  # fmt: skip
    return Tiles(tile_owners, tile_rows, size)
