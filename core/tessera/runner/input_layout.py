"""Where the rows and tokens of a launch stand, padding included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.platform.launch import ALL_POSITIONS
from tessera.platform.shapes import LaunchShape


@dataclass(frozen=True)
class InputLayout:
    """The inputs that depend only on the rows of a launch and their query_lens, not on positions, so that they stay the
    same from one decode step to the next. There are R places for rows and T for tokens."""

    # How many of the R and T are used.
    num_rows: int
    num_tokens: int
    # As in Launch, on the host.
    rows: Array
    query_start_loc: Array
    query_lens: Array
    # [num_tokens]: the place of each token's row in the launch.
    row_of: Array
    # [num_tokens] int32: the index of each token among those of its row.
    within: Array
    # [num_tokens]: the place of each token in the launch; None if the tokens fill all places in order.
    token_places: Array | None
    # [T]: the row of the token at each place; the null row for padding.
    token_rows: Array
    # As in Launch, on the host.
    logits_indices: Array

    @classmethod
    def build(cls, shape: LaunchShape, rows: Array, lengths: Array, null_row: int) -> InputLayout:
        key, num_rows, num_tokens = shape.key, len(rows), int(lengths.sum())
        padded, query_lens = fill_up(rows, key.rows, null_row), fill_up(lengths, key.rows, 0)
        query_start_loc = _start_loc(shape, query_lens)
        row_of = np.repeat(np.arange(num_rows), lengths)
        within = np.arange(num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = query_start_loc[row_of] + within
        in_order = num_tokens == key.tokens and bool((at == np.arange(num_tokens)).all())
        token_rows = np.full(key.tokens, null_row)
        token_rows[at] = rows[row_of]
        if key.kind == "verify":
            logits_indices = np.arange(key.tokens, dtype=np.int32)
        else:
            logits_indices = np.where(query_lens > 0, query_start_loc[:-1] + query_lens - 1, 0).astype(np.int32)
        if ALL_POSITIONS in key.bits:
            logits_indices = np.concatenate((logits_indices, np.arange(key.tokens, dtype=np.int32)))
        return cls(
            num_rows=num_rows,
            num_tokens=num_tokens,
            rows=padded,
            query_start_loc=query_start_loc,
            query_lens=query_lens,
            row_of=row_of,
            within=within.astype(np.int32),
            token_places=None if in_order else at,
            token_rows=token_rows,
            logits_indices=logits_indices,
        )

    def by_row(self, values: Array) -> Array:
        """values [num_rows] int32, padded with zeros to [R]."""
        return values if len(self.rows) == self.num_rows else fill_up(values, len(self.rows), 0)

    def positions(self, starts: Array) -> Array:
        """The position of the token at each place, [T] int32; 0 for padding. starts [num_rows] int32: the position of
        each row's first token."""
        if self.num_tokens == self.num_rows and self.token_places is None:
            return starts
        positions: Array = starts.take(self.row_of)
        positions += self.within
        if self.token_places is None:
            return positions
        placed: Array = np.zeros(len(self.token_rows), np.int32)
        placed[self.token_places] = positions
        return placed


def layout_key(shape: LaunchShape, rows: Array, lengths: Array) -> tuple[Any, ...]:
    """A key that is equal for launches with the same InputLayout."""
    key = shape.key
    return (
        key.rows,
        key.tokens,
        shape.stride,
        key.kind == "verify",
        ALL_POSITIONS in key.bits,
        rows.tobytes(),
        lengths.tobytes(),
    )


def _start_loc(shape: LaunchShape, lengths: Array) -> Array:
    """[R + 1] int32: where each row starts in the launch, and where the last one ends."""
    if shape.stride:
        return np.arange(len(lengths) + 1, dtype=np.int32) * shape.stride
    result = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=result[1:])
    return result


def fill_up(values: Array, size: int, filler: int) -> Array:
    """values [n], padded with `filler` to [size] int32."""
    result = np.full(size, filler, np.int32)
    result[: len(values)] = values
    return result
