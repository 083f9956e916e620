"""How decode attention divides the keys of rows among programs, and what that costs by count: by Triton's interpreter,
and a model of a device that runs programs one after another."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from math import ceil
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl

from tessera_triton import TARGETS
from tessera_triton.attention import _BUSY, _divides
from tessera_triton.decode import divided, find_row, least_turns, turns_of

KEYS = 64  # of a turn
MOST_PARTS = 64


@triton.jit(do_not_specialize=["rows", "spare", "first", "programs"])
def list_parts(
    found,
    lengths,
    ends,
    rows,
    spare,
    first,
    programs,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DIVIDED: tl.constexpr,
):
    """found [programs, 4]: row, part, parts of divided rows before it, turns of a part."""
    least = least_turns(rows, spare, lengths, ends, WINDOW, BLOCK_N)
    for number in range(first, programs):
        row, part, place = find_row(number, rows, least, lengths, ends, WINDOW, BLOCK_N, DIVIDED)
        turns = tl.sum(turns_of(tl.maximum(row, 0) + tl.arange(0, 1), rows, lengths, ends, WINDOW, BLOCK_N), 0)
        each, _ = divided(turns, least)
        tl.store(found + number * 4, row)
        tl.store(found + number * 4 + 1, part)
        tl.store(found + number * 4 + 2, place)
        tl.store(found + number * 4 + 3, each)


class Part(NamedTuple):
    row: int
    part: int
    place: int
    turns: int


def parts(ends: Sequence[int], spare: int, window: int = 0, *, first: int = 0, divided: bool = False) -> list[Part]:
    """What each program of a head computes, or each that combines; row -1: nothing. first: those before it are
    not looked at."""
    rows = len(ends)
    programs = min(rows, max(spare // 2, 1)) if divided else rows + spare
    found = torch.full((programs, 4), -7, dtype=torch.int32)
    counts = torch.tensor(ends, dtype=torch.int32)
    list_parts[(1,)](found, torch.ones_like(counts), counts, rows, spare, first, programs, window, KEYS, divided)
    return [Part(*one) for one in found[first:].tolist()]


BATCHES = {
    "one": [4100],
    "none": [0, 0, 0],
    "short": [1, 63, 64, 65],
    "skewed": [9, 32_768, *[100] * 30],
    "skewed twice": [5000, 1, 0, 5000, 129],
    "longer than its parts": [70_000],
}


@pytest.mark.parametrize(
    ("ends", "spare", "window"),
    [
        *(pytest.param(ends, 33, 0, id=name) for name, ends in BATCHES.items()),
        *(pytest.param(ends, 3, 500, id=f"{name}, windows") for name, ends in BATCHES.items()),
        pytest.param(BATCHES["skewed"], 1, 0, id="one spare"),
    ],
)
def test_each_turn_of_a_row_is_one_program_s(ends: list[int], spare: int, window: int) -> None:
    found = [one for one in parts(ends, spare, window) if one.row >= 0]
    assert [one.row for one in found] == sorted(one.row for one in found)
    assert {one.row for one in found} == set(range(len(ends)))
    stored, several = 0, []
    for row, end in enumerate(ends):
        own = [one for one in found if one.row == row]
        turns = ceil(end / KEYS) - (max(end - window, 0) // KEYS if window else 0)
        assert [one.part for one in own] == list(range(len(own)))
        assert len(own) <= MOST_PARTS
        assert (len(own) - 1) * own[0].turns < max(turns, 1) <= len(own) * own[0].turns
        if len(own) > 1:
            assert {one.place for one in own} == {stored}
            several.append((row, stored))
            stored += len(own)
    assert stored <= spare
    assert [(one.row, one.place) for one in parts(ends, spare, window, divided=True) if one.row >= 0] == several
    if several:  # the host may say so where it does not happen, but not the other way round
        assert _divides(torch.tensor(ends).numpy(), spare, window or None)


def test_more_rows_than_are_looked_at_together() -> None:
    """The row before the last has 9,000 keys, 141 turns. All have 1,171: an 8th is 147, a 32nd 37."""
    ends = [*[70] * 514, 9000, 3]
    assert parts(ends, 8, first=513)[:4] == [(513, 0, 0, 2), (514, 0, 0, 141), (515, 0, 0, 1), (-1, 0, 0, 2)]
    assert parts(ends, 32, first=514)[:5] == [
        (514, 0, 0, 47), (514, 1, 0, 47), (514, 2, 0, 47), (515, 0, 3, 1), (-1, 0, 0, 2),
    ]  # fmt: skip


# ---- what it costs

CARD = TARGETS["sm_90"]
HEADS, LAYERS = 8, 32  # of keys, of Llama 3.1 8B
AT_ONCE = 3  # programs of a processor, by their shared memory
TURNS = 3.0e6 / (KEYS * 4096 / HEADS)  # that the device's memory has bytes for in a us, at 3.0 TB/s
TURN = 0.55  # us of a turn of a program that does not wait for others: its copies under way, and products
BEGIN = 2.0  # us of a program without its turns: lengths, numbers of blocks, the first copies, the result
NOTHING = 0.5  # us of a program that leaves
COMBINE = 2.5  # us of the second launch


def layer_us(programs: Sequence[int]) -> float:
    """The time of a launch whose programs take so many turns: what its bytes take, or, if that is more, what its
    programs take one after another, started in this order as others end."""
    places = [0.0] * (CARD.processors * AT_ONCE)
    for turns in programs:
        heapreplace(places, places[0] + (BEGIN + turns * TURN if turns else NOTHING))
    return max(sum(programs) / TURNS + BEGIN, *places)


def step_ms(ends: Sequence[int]) -> float:
    found = parts(ends, _BUSY * CARD.processors // HEADS)
    each = [0 if one.row < 0 else min(one.turns, ceil(ends[one.row] / KEYS) - one.part * one.turns) for one in found]
    return LAYERS * (layer_us(each * HEADS) + COMBINE) / 1000


def step_ms_by_shape(ends: Sequence[int], most: int) -> float:
    """As it was: as many parts for each row as the number of rows and the most keys of a row say."""
    wanted = min(_BUSY * CARD.processors // (len(ends) * HEADS), most // 256, 64)
    splits = 1 << (wanted.bit_length() - 1) if wanted > 1 else 1
    each = []
    for end in ends:
        turns = ceil(end / KEYS)
        share = ceil(turns / splits)
        each += [max(min(share, turns - number * share), 0) for number in range(splits)]
    return LAYERS * (layer_us(each * HEADS) + (COMBINE if splits > 1 else 0)) / 1000


def test_one_long_row_costs_what_its_keys_cost() -> None:
    """32,768 keys among 31 rows of 100: 35,868 keys, 4.7 GB in 32 layers, 1.57 ms at 3.0 TB/s."""
    ends = [32_768, *[100] * 31]
    assert 8.5 < step_ms_by_shape(ends, 32_768) < 10
    assert 1.5 < step_ms(ends) < 1.9


@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 512), (1, 4096), (2, 1024), (8, 256), (16, 1024), (32, 1024), (40, 300)]
)
def test_equal_rows_are_no_worse(rows: int, keys: int) -> None:
    """But for the launch that would combine parts, 0.08 ms where there were none."""
    ends, extra = [keys] * rows, LAYERS * COMBINE / 1000 + 0.02
    assert step_ms(ends) <= step_ms_by_shape(ends, 8192) + extra
