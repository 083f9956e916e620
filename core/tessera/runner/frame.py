"""What a launch has of its rows and of how many tokens each computes, wherever they are: from one decode step to the
next it stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.platform.launch import ALL_POSITIONS, LaunchShape


@dataclass(frozen=True)
class Frame:
    """A launch with R places for rows and T for tokens, of which num_rows and num_tokens are taken.

    rows, query_start_loc, query_lens int32 as in a Launch. row_of, within [num_tokens]: the place of each token's
    row, and of the token in it. at [num_tokens]: the token's place in the launch; None where all are taken in order.
    token_rows [T]: the row of each place. logits_indices: as Launch.logits_indices.
    """

    num_rows: int
    num_tokens: int
    rows: Array
    query_start_loc: Array
    query_lens: Array
    row_of: Array
    within: Array
    at: Array | None
    token_rows: Array
    logits_indices: Array

    @classmethod
    def of(cls, cut: LaunchShape, rows: Array, lengths: Array, null_row: int) -> Frame:
        """Rows beyond the given ones, and places without a token, are the null row's."""
        key, num_rows, num_tokens = cut.key, len(rows), int(lengths.sum())
        padded, query_lens = filled(rows, key.rows, null_row), filled(lengths, key.rows, 0)
        query_start_loc = _start_loc(cut, query_lens)
        row_of = np.repeat(np.arange(num_rows), lengths)
        within = np.arange(num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = query_start_loc[row_of] + within
        in_order = num_tokens == key.tokens and bool((at == np.arange(num_tokens)).all())
        token_rows = np.full(key.tokens, null_row)
        token_rows[at] = rows[row_of]
        logits_indices = np.where(query_lens > 0, query_start_loc[:-1] + query_lens - 1, 0).astype(np.int32)
        if ALL_POSITIONS in key.bits:
            logits_indices = np.concatenate((logits_indices, np.arange(key.tokens, dtype=np.int32)))
        return cls(
            num_rows, num_tokens, padded, query_start_loc, query_lens, row_of, within.astype(np.int32),
            None if in_order else at, token_rows, logits_indices,
        )  # fmt: skip

    def by_row(self, values: Array) -> Array:
        """values [num_rows] int32, and zeros for the padding."""
        return values if len(self.rows) == self.num_rows else filled(values, len(self.rows), 0)

    def positions(self, starts: Array) -> Array:
        """[T] int32, where rows go on at starts [num_rows]; 0 for the padding."""
        if self.num_tokens == self.num_rows and self.at is None:
            return starts
        positions: Array = starts.take(self.row_of)
        positions += self.within
        if self.at is None:
            return positions
        placed: Array = np.zeros(len(self.token_rows), np.int32)
        placed[self.at] = positions
        return placed


def outline(cut: LaunchShape, rows: Array, lengths: Array) -> tuple[Any, ...]:
    """Equal for launches with the same Frame."""
    key = cut.key
    return key.rows, key.tokens, cut.stride, ALL_POSITIONS in key.bits, rows.tobytes(), lengths.tobytes()


def _start_loc(cut: LaunchShape, lengths: Array) -> Array:
    """Where in the launch each row begins, and where the last one ends."""
    if cut.stride:
        return np.arange(len(lengths) + 1, dtype=np.int32) * cut.stride
    result = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=result[1:])
    return result


def filled(values: Array, size: int, filler: int) -> Array:
    result = np.full(size, filler, np.int32)
    result[: len(values)] = values
    return result
