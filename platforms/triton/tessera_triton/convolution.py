"""A causal convolution of each channel over the last few tokens, as state mixers have it: prompts in tiles of tokens,
rows that decode, and what the state then holds, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tessera_triton.facts import Launcher, power_of_two
from tessera_triton.prefill import row_of
from tessera_triton.state import StatePlan

_TOKENS, _CHANNELS = 16, 128  # of a tile
_CHANNELS_OF_ONE = 256  # of a tile of one token


@triton.jit
def _inputs(x, before, multipliers, at, channel, inside, GATED: tl.constexpr, MULTIPLIED: tl.constexpr) -> Any:
    """What is convolved, in float32, 0 if not inside. at: of the tokens' elements in x."""
    found = tl.load(x + at + channel, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        found *= tl.load(before + at + channel, mask=inside, other=0.0).to(tl.float32)
    if MULTIPLIED:
        found *= tl.load(multipliers + channel, mask=inside, other=0.0)
    return found


# x, x_token          inputs [T, CHANNELS]; elements from a token to the next
# before, after       GATED: what inputs, and results, are multiplied by; laid out as x is
# weight              [CHANNELS, TAPS] float32
# bias                BIASED: [CHANNELS] float32, added before the activation
# multipliers         MULTIPLIED: [CHANNELS] float32, of inputs
# state, state_slot   the last inputs [slots, CHANNELS, TAPS - 1] float32; elements from a slot to the next
# table, table_row    slots of rows; elements from a row to the next
# starts, lengths     query_start_loc and query_lens of the launch
# ends                seq_lens of the launch
# out                 dense [T, CHANNELS]
# fills               1: row i has token i, or none, and then gets zeros
# rows                of the launch
# GATED               results have no activation, but are multiplied; otherwise it is SiLU
# BLOCK_T, BLOCK_C    tokens and channels of a tile; a row has one tile if BLOCK_T is 1
@triton.jit(do_not_specialize=["table_row", "fills", "rows"])
def convolve(
    x, x_token, before, after, weight, bias, multipliers, state, state_slot, table, table_row, starts, lengths, ends,
    out, fills, rows,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, MULTIPLIED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """out of the tokens of rows. The program of a row's first tile alone reads and renews the row's state, since
    tokens of later tiles see none of it."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = channel < CHANNELS
    if BLOCK_T == 1:
        row = tl.program_id(0)
        tile = row * 0
    else:
        row, tile = row_of(tl.program_id(0), starts, rows * 0, rows, 1, BLOCK_T)
    length = tl.load(lengths + row)
    start = tl.where(fills != 0, row, tl.load(starts + row)).to(tl.int64)
    first = tile * BLOCK_T
    place = first + tl.arange(0, BLOCK_T)
    written = (place < length) | ((fills != 0) & (place == 0))
    if first < tl.maximum(length, fills):
        kept = state + tl.load(table + row * table_row).to(tl.int64) * state_slot + channel * (TAPS - 1)
        before_it = there & (tl.load(ends + row) != length)  # otherwise the slot holds another request's inputs
        total = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
        for tap in tl.static_range(TAPS):
            at = place + (tap - TAPS + 1)
            inside = ((at >= 0) & (place < length))[:, None] & there[None, :]
            found = _inputs(
                x, before, multipliers, ((start + at) * x_token)[:, None], channel[None, :], inside, GATED, MULTIPLIED
            )
            total += found * tl.load(weight + channel * TAPS + tap, mask=there, other=0.0)[None, :]
        if tile == 0:
            for tap in tl.static_range(TAPS - 1):
                index = place + tap  # in the state
                seen = ((index < TAPS - 1) & (place < length))[:, None] & before_it[None, :]
                found = tl.load(kept[None, :] + index[:, None], mask=seen, other=0.0)
                total += found * tl.load(weight + channel * TAPS + tap, mask=there, other=0.0)[None, :]
            tl.debug_barrier()  # other threads read the state of these channels
            for tap in tl.static_range(TAPS - 1):
                behind = length + (tap - TAPS + 1)
                taken = there & (behind >= 0)
                latest = _inputs(x, before, multipliers, (start + behind) * x_token, channel, taken, GATED, MULTIPLIED)
                older = tl.load(kept + length + tap, mask=before_it & (behind < 0), other=0.0)
                tl.store(kept + tap, latest + older, mask=there & (length > 0))
        if BIASED:
            total += tl.load(bias + channel, mask=there, other=0.0)[None, :]
        inside = (place < length)[:, None] & there[None, :]
        if GATED:
            by = (start + place)[:, None] * x_token + channel[None, :]
            total *= tl.load(after + by, mask=inside, other=0.0).to(tl.float32)
        else:
            total = total * tl.sigmoid(total)
        total = tl.where(inside, total, 0.0)
        result = out + (start + place)[:, None] * CHANNELS + channel[None, :]
        tl.store(result, total.to(out.dtype.element_ty), mask=written[:, None] & there[None, :])


@dataclass(frozen=True)
class Convolution:
    """Of a layer's channels. gated: as the kernel says."""

    launch: Launcher
    # of x
    channels: int
    # tokens that it sees
    taps: int
    # whether results are gated; otherwise they are activated
    gated: bool = False

    def __call__(
        self, x: Tensor, weight: Tensor, state: Tensor, plan: StatePlan, out: Tensor, bias: Tensor | None = None,
        multipliers: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """x [T, channels], or gated [T, 3 channels]: what inputs are multiplied by, and results, then the inputs.
        state: the plane with the last inputs. Returns out [T, channels], which is dense."""
        single = plan.width == 1
        tokens, channels = (1, _CHANNELS_OF_ONE) if single else (max(_TOKENS, power_of_two(self.taps)), _CHANNELS)
        before, after, inputs = x.split(self.channels, dim=1) if self.gated else (x, x, x)
        tiles = plan.rows if single else (plan.tokens - 1) // tokens + plan.rows
        if plan.tokens:
            self.launch(
                convolve, (tiles, -(-self.channels // channels)),
                inputs, x.stride(0), before, after, weight, weight if bias is None else bias,
                weight if multipliers is None else multipliers, state, state.stride(0), *plan.arguments, out,
                int(plan.fills), plan.rows,
                CHANNELS=self.channels, TAPS=self.taps, GATED=self.gated, BIASED=bias is not None,
                MULTIPLIED=multipliers is not None, BLOCK_T=tokens, BLOCK_C=channels, num_warps=4,
            )  # fmt: skip
        return out
