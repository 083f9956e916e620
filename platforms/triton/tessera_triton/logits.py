"""What reads and changes logits: log probabilities, copies, masks, edits and penalties.

A stretch of a row is a tile, and the tiles of a row are computed side by side. An entry and its place in the vocabulary
are one number of 64 bits, the entry's order, larger for a larger entry, and of equal ones for the first. So the largest
of some orders names the entry that a stable sort puts first, and sets of the most likely entries are `order >= bound`.

Sums are made in a fixed order: nothing depends on how programs are scheduled, nor on how many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import (
    BoundOps,
    Device,
    EditLogitsSpec,
    Edits,
    History,
    Kernel,
    Logprobs,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    TakeLogitsSpec,
)
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

NOTHING = tl.constexpr(-(1 << 63))
"""Below the order of every entry."""

_MOST_LIKELY = 32  # reported per row
_CANDIDATES = 16_384  # that one program merges


# ---- orders


@triton.jit
def _ordered(value, entry):
    """float32 and int32 -> int64, as this file says. NaN counts as the largest."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # -0 equals 0
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(value != value, 0x7FFFFFFF, key)
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - entry).to(tl.int64)


@triton.jit
def _value_of(order):
    key = (order >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _entry_of(order):
    return 0x7FFFFFFF - (order & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _above(value, peak):
    """exp(value - peak) for values up to the peak. Infinite peaks count as 0, so that no NaN appears."""
    base = tl.where((peak > -float("inf")) & (peak < float("inf")), peak, 0.0)
    return tl.exp(tl.minimum(value - base, 0.0))


# ---- sizes


@dataclass(frozen=True)
class Sizes:
    """Of the programs that draw tokens."""

    # entries of a program where the tiles of a row are computed side by side
    tile: int
    # of such a program
    tile_warps: int
    # entries that a program holds where it walks through a row
    block: int
    # of such a program
    block_warps: int


def sizes_of(facts: DeviceFacts, vocab: int) -> Sizes:
    """Few processors take large tiles. The same for all numbers of rows, so that sums are rounded alike."""
    tile, block = (1024, 4096) if facts.processors >= 32 else (8192, 16_384)
    most = max(power_of_two(vocab), 128)
    return Sizes(min(tile, most), 4, min(block, most), 512 // facts.warp_size)


def as_rows(logits: Tensor) -> Tensor:
    """[S, V] with the entries of a row next to each other."""
    return logits if logits.stride(-1) == 1 else logits.contiguous()


# ---- logprobs


@triton.jit(do_not_specialize=["top"])
def _likely_of_tiles(logits, stride, likely, masses, n, tiles, top, TILE: tl.constexpr):
    """likely [S, tiles, top]: the largest orders of each tile, falling. masses [S, tiles]: the sum of
    exp(entry - largest entry)."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = tile * TILE + tl.arange(0, TILE)
    inside = entry < n
    value = tl.load(logits + row * stride + entry, mask=inside, other=-float("inf")).to(tl.float32)
    order = tl.where(inside, _ordered(value, entry), NOTHING)
    place = row * tiles + tile
    peak = _value_of(tl.max(order, 0))
    tl.store(masses + place, tl.sum(tl.where(inside, _above(value, peak), 0.0), 0))
    for number in range(top):
        first = tl.max(order, 0)
        tl.store(likely + place * top + number, first)
        order = tl.where(order == first, NOTHING, order)


@triton.jit
def _mass_of_tiles(peaks, peaks_stride, masses, tiles, peak, TILES: tl.constexpr):
    """The sum of exp(entry - peak) over the tiles of a row. peaks: their largest orders, peaks_stride apart."""
    tile = tl.arange(0, TILES)
    mass = tl.load(masses + tile, mask=tile < tiles, other=0.0)
    largest = _value_of(tl.load(peaks + tile * peaks_stride, mask=tile < tiles, other=0))
    return tl.sum(tl.where(tile < tiles, mass * _above(largest, peak), 0.0), 0)


@triton.jit(do_not_specialize=["top", "number"])
def _likely_of_rows(
    logits, stride, tokens, likely, masses, ids, logprobs, ranks, n, tiles, top, number,
    TILES: tl.constexpr, CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Log probabilities are (entry - peak) - log(mass), as torch computes them, and ranks count those."""
    row = tl.program_id(0).to(tl.int64)
    likely += row * tiles * top
    candidate = tl.arange(0, CANDIDATES)
    order = tl.load(likely + candidate, mask=candidate < tiles * top, other=NOTHING)
    peak = _value_of(tl.max(order, 0))
    mass = _mass_of_tiles(likely, top, masses + row * tiles, tiles, peak, TILES)
    # Of a row whose largest entry is infinite, or that has NaN, torch gives NaN.
    unknown = (peak != peak) | (peak == float("inf")) | (peak == -float("inf"))
    base, log_mass = tl.where(unknown, 0.0, peak), tl.where(unknown, float("nan"), tl.log(tl.where(unknown, 1.0, mass)))
    logits += row * stride
    token = tl.load(tokens + row)
    own = (tl.load(logits + token).to(tl.float32) - base) - log_mass
    ids += row * (number + 1)
    logprobs += row * (number + 1)
    tl.store(ids, token)
    tl.store(logprobs, own)
    for place in range(1, number + 1):
        first = tl.max(order, 0)
        tl.store(ids + place, _entry_of(first))
        tl.store(logprobs + place, (_value_of(first) - base) - log_mass)
        order = tl.where(order == first, NOTHING, order)
    better = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        value = tl.load(logits + entry, mask=entry < n, other=-float("inf")).to(tl.float32)
        better += ((entry < n) & ((value - base) - log_mass > own)).to(tl.int32)
    tl.store(ranks + row, tl.sum(better, 0) + 1)


@dataclass(frozen=True)
class LogProbabilities:
    """Launches both kernels. A step that samples calls it as the op does."""

    launch: Launcher
    sizes: Sizes

    def __call__(self, spec: LogprobsSpec, logits: Tensor, tokens: Tensor) -> Logprobs:
        """logits [S, V], tokens [S] int32 -> Logprobs, with spec.logprobs of the most likely."""
        rows, number, sizes = as_rows(logits), spec.logprobs, self.sizes
        tiles, top = triton.cdiv(spec.vocab, sizes.tile), max(number, 1)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(len(rows), *shape, dtype=dtype, device=rows.device)

        likely, masses = empty(torch.int64, tiles, top), empty(torch.float32, tiles)
        result = Logprobs(empty(torch.int32, 1 + number), empty(torch.float32, 1 + number), empty(torch.int32))
        if len(rows):
            self.launch(
                _likely_of_tiles, (len(rows), tiles), rows, rows.stride(0), likely, masses, spec.vocab, tiles, top,
                TILE=sizes.tile, num_warps=sizes.tile_warps,
            )  # fmt: skip
            self.launch(
                _likely_of_rows, (len(rows),), rows, rows.stride(0), tokens.contiguous(), likely, masses, *result,
                spec.vocab, tiles, top, number,
                TILES=power_of_two(tiles), CANDIDATES=power_of_two(tiles * top), BLOCK=sizes.block,
                num_warps=sizes.block_warps,
            )  # fmt: skip
        return result


def too_many(vocab: int, number: int, facts: DeviceFacts) -> str | None:
    """Why so many log probabilities are not reported by kernels, if they are not."""
    if number > _MOST_LIKELY:
        return f"{number} of the most likely tokens; kernels report up to {_MOST_LIKELY}"
    if triton.cdiv(vocab, sizes_of(facts, vocab).tile) * max(number, 1) > _CANDIDATES:
        return f"{number} of the most likely tokens of a vocabulary of {vocab}"
    return None


@dataclass(frozen=True)
class LogprobsOfTokens(Kernel[LogprobsSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: LogprobsSpec) -> str | None:
        return too_many(spec.vocab, spec.logprobs, self.facts)

    def bind(self, spec: LogprobsSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        compute = LogProbabilities(self.launch, sizes_of(self.facts, spec.vocab))

        def logprobs(logits: Tensor, tokens: Tensor) -> Logprobs:
            return compute(spec, logits, tokens)

        return logprobs


# ---- take_logits


@triton.jit
def _take(logits, stride, element, rows, out, n, TILE: tl.constexpr):
    place, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = tile * TILE + tl.arange(0, TILE)
    row = tl.load(rows + place).to(tl.int64)
    value = tl.load(logits + row * stride + entry.to(tl.int64) * element, mask=entry < n)
    tl.store(out + place * n + entry, value.to(tl.float32), mask=entry < n)


@dataclass(frozen=True)
class TakeLogits(Kernel[TakeLogitsSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: TakeLogitsSpec, ops: BoundOps, device: Device) -> Callable[..., Tensor]:
        sizes = sizes_of(self.facts, spec.vocab)

        def take_logits(logits: Tensor, rows: Tensor) -> Tensor:
            out = torch.empty(len(rows), spec.vocab, dtype=torch.float32, device=logits.device)
            if len(rows):
                self.launch(
                    _take, (len(rows), triton.cdiv(spec.vocab, sizes.tile)), logits, *logits.stride(),
                    rows.contiguous(), out, spec.vocab, TILE=sizes.tile, num_warps=sizes.tile_warps,
                )  # fmt: skip
            return out

        return take_logits


# ---- mask_logits


@triton.jit
def _mask(logits, stride, element, rows, bits, words, n, TILE: tl.constexpr):
    place, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = tile * TILE + tl.arange(0, TILE)
    row = tl.load(rows + place).to(tl.int64)
    word = tl.load(bits + place * words + (entry >> 5), mask=entry < n, other=0)
    forbidden = (entry < n) & (((word >> (entry & 31)) & 1) == 0)
    tl.store(logits + row * stride + entry.to(tl.int64) * element, -float("inf"), mask=forbidden)


@dataclass(frozen=True)
class MaskLogits(Kernel[MaskLogitsSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: MaskLogitsSpec, ops: BoundOps, device: Device) -> Callable[..., None]:
        sizes = sizes_of(self.facts, spec.vocab)

        def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
            if len(rows):
                self.launch(
                    _mask, (len(rows), triton.cdiv(spec.vocab, sizes.tile)), logits, *logits.stride(),
                    rows.contiguous(), bits.contiguous(), bits.shape[-1], spec.vocab,
                    TILE=sizes.tile, num_warps=sizes.tile_warps,
                )  # fmt: skip

        return mask_logits


# ---- edit_logits

_EDITS = 64  # that a program compares with as many others at once


@triton.jit(do_not_specialize=["number", "width"])
def _weigh_edits(
    amounts, number, history, history_stride, history_rows, num_prompt_tokens, num_tokens, row_of, value, until,
    prefix, width, BLOCK: tl.constexpr,
):  # fmt: skip
    """amounts [E]: what each edit adds now, 0 if it does not apply. prefix [E, width]."""
    edit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edit < number
    row = tl.load(row_of + edit, mask=inside, other=0)
    known = tl.load(num_tokens + row, mask=inside, other=0)
    prompt = tl.load(num_prompt_tokens + row, mask=inside, other=0)
    line = tl.load(history_rows + row, mask=inside, other=0).to(tl.int64) * history_stride
    holds = inside & (known < tl.load(until + edit, mask=inside, other=0))
    for place in range(width):
        wanted = tl.load(prefix + edit.to(tl.int64) * width + place, mask=inside, other=-1)
        at = known - width + place
        answered = at >= prompt
        held = tl.load(history + line + at, mask=inside & answered, other=-1)
        holds = holds & ((wanted < 0) | (answered & (held == wanted)))
    tl.store(amounts + edit, tl.where(holds, tl.load(value + edit, mask=inside, other=0.0), 0.0), mask=inside)


@triton.jit(do_not_specialize=["number"])
def _edit(logits, stride, element, amounts, number, row_of, token_of, BLOCK: tl.constexpr):
    """The first of the edits of one logit adds them all. Atomic additions would come in any order, and sums differ."""
    edit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(row_of + edit, mask=edit < number, other=-1)
    token = tl.load(token_of + edit, mask=edit < number, other=-1)
    total = tl.zeros([BLOCK], tl.float32)
    earlier = tl.zeros([BLOCK], tl.int32)
    for start in range(0, number, BLOCK):
        other = start + tl.arange(0, BLOCK)
        other_row = tl.load(row_of + other, mask=other < number, other=-2)
        other_token = tl.load(token_of + other, mask=other < number, other=-2)
        amount = tl.load(amounts + other, mask=other < number, other=0.0)
        same = (row[:, None] == other_row[None, :]) & (token[:, None] == other_token[None, :])
        total += tl.sum(tl.where(same, amount[None, :], 0.0), 1)
        earlier += tl.sum((same & (other[None, :] < edit[:, None])).to(tl.int32), 1)
    first = (edit < number) & (earlier == 0)
    place = logits + row.to(tl.int64) * stride + token.to(tl.int64) * element
    tl.store(place, tl.load(place, mask=first, other=0.0) + total, mask=first)


@dataclass(frozen=True)
class EditLogits(Kernel[EditLogitsSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: EditLogitsSpec, ops: BoundOps, device: Device) -> Callable[..., None]:
        def edit_logits(logits: Tensor, history: History, edits: Edits) -> None:
            number = len(edits.row)
            if not number:
                return
            row, token, value, until, prefix = (part.contiguous() for part in edits)
            amounts, known = torch.empty_like(value), as_rows(history.tokens)
            grid = (triton.cdiv(number, _EDITS),)
            self.launch(
                _weigh_edits, grid, amounts, number, known, known.stride(0), history.rows, history.num_prompt_tokens,
                history.num_tokens, row, value, until, prefix, spec.prefix, BLOCK=_EDITS, num_warps=2,
            )  # fmt: skip
            self.launch(_edit, grid, logits, *logits.stride(), amounts, number, row, token, BLOCK=_EDITS, num_warps=4)

        return edit_logits


# ---- penalise

_TOKENS = 1024  # of a history that a program counts
_IN_PROMPT = tl.constexpr(1 << 30)


@triton.jit
def _count(counts, n, history, history_stride, history_rows, num_prompt_tokens, num_tokens, BLOCK: tl.constexpr):
    """counts [S, V]: how often a token comes in the answer, and _IN_PROMPT if it comes in the prompt."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known, prompt = tl.load(num_tokens + row), tl.load(num_prompt_tokens + row)
    if tl.program_id(1) * BLOCK < known:
        line = tl.load(history_rows + row).to(tl.int64) * history_stride
        token = tl.load(history + line + place, mask=place < known, other=0)
        count = counts + row * n + token
        tl.atomic_or(count, _IN_PROMPT, mask=(place < known) & (place < prompt), sem="relaxed")
        tl.atomic_add(count, 1, mask=(place < known) & (place >= prompt), sem="relaxed")


@triton.jit
def _penalise(
    logits, stride, element, counts, n, history, history_stride, history_rows, num_tokens, presence, frequency,
    repetition, BLOCK: tl.constexpr,
):  # fmt: skip
    """Who takes a token's count away changes its logit, so each changes once. With 0, `and` is an exchange, which
    Triton 3.7 cannot compile for gfx942, gfx950 and gfx1201."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = tl.load(num_tokens + row)
    if tl.program_id(1) * BLOCK < known:
        inside = place < known
        line = tl.load(history_rows + row).to(tl.int64) * history_stride
        token = tl.load(history + line + place, mask=inside, other=0)
        taken = tl.atomic_and(counts + row * n + token, tl.zeros([BLOCK], tl.int32), mask=inside, sem="relaxed")
        mine = inside & (taken != 0)
        times = (taken & (_IN_PROMPT - 1)).to(tl.float32)
        target = logits + row * stride + token.to(tl.int64) * element
        value = tl.load(target, mask=mine, other=0.0)
        factor = tl.load(repetition + row)
        value = tl.where(value > 0, tl.div_rn(value, factor), value * factor)
        value -= tl.load(frequency + row) * times
        value -= tl.where(times > 0, tl.load(presence + row), 0.0)
        tl.store(target, value, mask=mine)


@dataclass(frozen=True)
class Penalise(Kernel[PenaliseSpec]):
    facts: DeviceFacts
    launch: Launcher

    def bind(self, spec: PenaliseSpec, ops: BoundOps, device: Device) -> Callable[..., None]:
        def penalise(logits: Tensor, history: History, penalties: Penalties) -> None:
            if not logits.numel() or not history.tokens.numel():
                return
            known = as_rows(history.tokens)
            counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
            grid = (len(logits), triton.cdiv(known.shape[-1], _TOKENS))
            self.launch(
                _count, grid, counts, spec.vocab, known, known.stride(0), history.rows, history.num_prompt_tokens,
                history.num_tokens, BLOCK=_TOKENS, num_warps=4,
            )  # fmt: skip
            self.launch(
                _penalise, grid, logits, *logits.stride(), counts, spec.vocab, known, known.stride(0), history.rows,
                history.num_tokens, *penalties, BLOCK=_TOKENS, num_warps=4,
            )  # fmt: skip

        return penalise
