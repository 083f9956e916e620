"""LoRA adapters: y += scale (x A^T) B, for the tokens of several adapters at once. Tokens are brought together by the
slot of their adapter, and those without one are in no tile. Chen et al., Punica, arXiv:2310.18547.

One kernel multiplies with A, each program with a part of the inputs; another sums the parts and multiplies with B. What
lies between them is float32, which the second kernel splits into two numbers of the activations' dtype, so that matrix
instructions keep its precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LoraSpec
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.permutation import tiles_of

_RANK = 128  # the largest that a program holds
_TILE = 16  # tokens
_INPUTS = 128  # that a program multiplies at a time
_LONGEST_SPLIT = 8


@triton.jit
def _shrink(
    x, x_stride, a, tile_owners, tile_rows, low, ranks, k, steps_each,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """low [parts, places, ranks] float32: the rows of each tile times the rows of its slot's A."""
    tile, part = tl.program_id(0), tl.program_id(2)
    owner = tl.load(tile_owners + tile)
    if owner == 0:
        return
    slot = (owner - 1).to(tl.int64)
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.load(tile_rows + place) - 1
    rank = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for step in range(part * steps_each, (part + 1) * steps_each):
        column = step * BLOCK_K + tl.arange(0, BLOCK_K)
        some = tl.load(
            x + row.to(tl.int64)[:, None] * x_stride + column[None, :],
            mask=(row >= 0)[:, None] & (column < k)[None, :], other=0.0,
        )  # fmt: skip
        rows = a + (slot * ranks + rank)[None, :] * k + column[:, None]
        narrow = tl.load(rows, mask=(rank < ranks)[None, :] & (column < k)[:, None], other=0.0)
        total = tl.dot(some, narrow, total, input_precision="ieee")
    places = tl.num_programs(0) * BLOCK_M
    out = low + (part * places + place).to(tl.int64)[:, None] * ranks + rank[None, :]
    tl.store(out, total, mask=(row >= 0)[:, None] & (rank < ranks)[None, :])


@triton.jit
def _expand(
    y, y_stride, low, b, scales, ends, tile_owners, tile_rows, n, layers, ranks, rank, parts,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y [T, n], in place. ends: where the columns of each layer end. rank: of a layer; ranks: of all layers."""
    tile = tl.program_id(0)
    owner = tl.load(tile_owners + tile)
    if owner == 0:
        return
    slot = (owner - 1).to(tl.int64)
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.load(tile_rows + place) - 1
    first = tl.program_id(1) * BLOCK_N
    column = first + tl.arange(0, BLOCK_N)
    number = tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    places = tl.num_programs(0) * BLOCK_M
    begin = 0
    for layer in range(layers):
        end = tl.load(ends + layer)
        if (first < end) & (first + BLOCK_N > begin):
            left = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
            for part in range(parts):
                rows = low + (part * places + place).to(tl.int64)[:, None] * ranks + (layer * rank + number)[None, :]
                left += tl.load(rows, mask=(row >= 0)[:, None] & (number < rank)[None, :], other=0.0)
            right = tl.load(
                b + (slot * rank + number)[:, None] * n + column[None, :],
                mask=(number < rank)[:, None] & ((column >= begin) & (column < end))[None, :], other=0.0,
            )  # fmt: skip
            high = left.to(right.dtype)
            total = tl.dot(high, right, total, input_precision="ieee")
            if right.dtype != tl.float32:
                rest = (left - high.to(tl.float32)).to(right.dtype)
                total = tl.dot(rest, right, total, input_precision="ieee")
        begin = end
    target = y + row.to(tl.int64)[:, None] * y_stride + column[None, :]
    mask = (row >= 0)[:, None] & (column < n)[None, :]
    value = tl.load(target, mask=mask, other=0.0).to(tl.float32) + tl.load(scales + slot) * total
    tl.store(target, value.to(y.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class Lora(Kernel[LoraSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: LoraSpec) -> str | None:
        return f"a rank of {spec.rank}; kernels take up to {_RANK}" if spec.rank > _RANK else None

    def bind(self, spec: LoraSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        n, layers = sum(spec.layers), len(spec.layers)
        ranks, held = layers * spec.rank, max(power_of_two(spec.rank), 16)
        steps = -(-spec.k // _INPUTS)
        parts = min(steps, _LONGEST_SPLIT)
        ends = torch.tensor(list(accumulate(spec.layers)), dtype=torch.int32, device=device.target)
        several = min(max(power_of_two(ranks), 16), 64)

        def lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scales: Tensor, slots: Tensor) -> None:
            if not len(x):
                return
            x = x if x.stride(-1) == 1 else x.contiguous()
            own = y if y.stride(-1) == 1 else y.contiguous()
            tiles = tiles_of(self.launch, slots, _TILE, spec.slots)
            owned = len(tiles.owners)
            low = torch.empty(parts, len(tiles.rows), ranks, dtype=torch.float32, device=x.device)
            self.launch(
                _shrink, (owned, -(-ranks // several), parts), x, x.stride(0), a, tiles.owners, tiles.rows, low, ranks,
                spec.k, -(-steps // parts), BLOCK_M=_TILE, BLOCK_R=several, BLOCK_K=_INPUTS, num_warps=4,
            )  # fmt: skip
            self.launch(
                _expand, (owned, -(-n // 128)), own, own.stride(0), low, b, scales, ends, tiles.owners, tiles.rows, n,
                layers, ranks, spec.rank, parts, BLOCK_M=_TILE, BLOCK_R=held, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
            if own is not y:
                y.copy_(own)

        return lora
