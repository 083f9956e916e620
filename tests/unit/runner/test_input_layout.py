"""Where rows and tokens lie in a launch, beside the same said by loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.platform.drafts import accepted
from tessera.platform.launch import ALL_POSITIONS, LaunchKey
from tessera.platform.shapes import LaunchShape
from tessera.runner.input_layout import InputLayout, layout_key

NULL = 9


def shape(rows, tokens, stride=0, bits=()):
    return LaunchShape(LaunchKey("mixed", rows, tokens, 1, tokens, frozenset(bits)), 0, rows, stride)


def cases():
    chance = random.Random(0)
    for _ in range(200):
        rows = chance.sample(range(NULL), chance.randint(0, 6))
        longest = chance.choice([1, 1, 5])
        lengths = [chance.randint(1, longest) for _ in rows]
        stride = chance.choice([0, 0, longest, longest + 1])
        places = len(rows) + chance.choice([0, 0, 2])
        needed = places * stride if stride else sum(lengths)
        yield rows, lengths, shape(max(places, 1), max(needed + chance.choice([0, 0, 3]), 1), stride)


@pytest.mark.parametrize("case", list(cases()))
def test_it_is_what_loops_over_rows_say(case):
    rows, lengths, cut = case
    layout = InputLayout.build(cut, int32(rows), int32(lengths), NULL)
    starts = [10 * place + 3 for place in range(len(rows))]
    positions, token_rows = [0] * cut.key.tokens, [NULL] * cut.key.tokens
    logits_indices, at = [], 0
    for place, (row, length, start) in enumerate(zip(rows, lengths, starts, strict=True)):
        first = place * cut.stride if cut.stride else at
        for token in range(length):
            positions[first + token], token_rows[first + token] = start + token, row
        logits_indices.append(first + length - 1)
        at += length
    padding = cut.key.rows - len(rows)
    assert layout.positions(int32(starts)).tolist() == positions
    assert layout.token_rows.tolist() == token_rows
    assert layout.logits_indices.tolist() == logits_indices + [0] * padding
    assert layout.rows.tolist() == rows + [NULL] * padding
    assert layout.query_lens.tolist() == lengths + [0] * padding
    assert layout.by_row(int32(starts)).tolist() == starts + [0] * padding
    assert (layout.num_rows, layout.num_tokens) == (len(rows), sum(lengths))
    assert {
        array.dtype for array in (layout.rows, layout.query_start_loc, layout.query_lens, layout.logits_indices)
    } == {np.dtype(np.int32)}


def test_all_positions_follow_those_of_the_rows():
    cut = shape(2, 5, bits=(ALL_POSITIONS,))
    assert InputLayout.build(cut, int32([4, 2]), int32([2, 3]), NULL).logits_indices.tolist() == [1, 4, 0, 1, 2, 3, 4]


def test_a_key_is_equal_where_the_layout_is():
    rows, lengths = int32([4, 2]), int32([1, 1])
    same = layout_key(shape(2, 2), rows, lengths)
    assert same == layout_key(shape(2, 2), rows.copy(), lengths.copy())
    others = [
        layout_key(shape(2, 2), int32([2, 4]), lengths),
        layout_key(shape(2, 3), rows, int32([1, 2])),
        layout_key(shape(4, 2), rows, lengths),
        layout_key(shape(2, 4), rows, lengths),
        layout_key(shape(2, 2, stride=1), rows, lengths),
        layout_key(shape(2, 2, bits=(ALL_POSITIONS,)), rows, lengths),
    ]
    assert same not in others


def test_a_launch_that_verifies_samples_every_token():
    key = LaunchKey("verify", 3, 4, 1, 12)
    layout = InputLayout.build(LaunchShape(key, 0, 2, 4), int32([7, 2]), int32([3, 1]), NULL)
    assert layout.logits_indices.tolist() == list(range(12))
    assert layout.token_rows.tolist() == [7, 7, 7, NULL, 2, *[NULL] * 7]
    assert key.samples_all
    assert key.num_samples == 12


@pytest.mark.parametrize(
    ("drafts", "tokens", "counts"),
    [
        ([5, 6, -1], [5, 6, 7], [3]),
        ([5, 6, -1], [5, 7, 6], [2]),
        ([5, 6, -1], [6, 6, 6], [1]),
        ([-1, 4, -1, -1], [9, 4, 4, 0], [1, 2, 1]),
        ([-1], [3], [1]),
    ],
)
def test_drafts_are_accepted_up_to_the_first_that_was_not_drawn(drafts, tokens, counts):
    first, found = accepted(int32(drafts), int32(tokens))
    assert found.tolist() == counts
    assert first.tolist() == [0, *(np.flatnonzero(int32(drafts) < 0)[:-1] + 1)]
