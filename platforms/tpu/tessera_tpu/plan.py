"""How the tokens of a launch lie, computed once for all layers of a cache group."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array as Jax


@dataclass(frozen=True)
class Rows:
    """R rows whose T tokens lie behind one another, on the device, int32."""

    # [T]: of each token; R for padding
    row: Jax
    # [T]: 0 for padding
    positions: Jax
    # [R]: each row's first token
    start: Jax
    # [R]: its tokens; 0 for padding
    count: Jax
    # [R]: the position of its first token
    first: Jax


@dataclass(frozen=True)
class Tiles:
    """The tokens of a launch in N tiles of Q places, each of them of one row, since rows end anywhere. row [N]. first,
    count [N]: the position of the first query, and the number of queries. token [N, Q]: of each place; T where there is
    none. place [T]: the inverse, of the flattened places."""

    row: Jax
    first: Jax
    count: Jax
    token: Jax
    place: Jax

    @classmethod
    def from_rows(cls, rows: Rows, width: int, size: int) -> Tiles:
        """width: tokens of the longest row at most. size: Q."""
        number, tokens = len(rows.start), len(rows.row)
        size = min(size, width)
        if width <= size:  # a tile for each row
            row, inside = jnp.arange(number), jnp.zeros(number, jnp.int32)
        else:
            needed = -(-rows.count // size)
            ends = jnp.cumsum(needed)
            tile = jnp.arange(tokens // size + number)
            row = jnp.minimum(jnp.searchsorted(ends, tile, side="right"), number - 1)
            inside = (tile - (ends - needed)[row]) * size
        count = jnp.clip(rows.count[row] - inside, 0, size)
        at = jnp.arange(size)
        token = jnp.where(at < count[:, None], (rows.start[row] + inside)[:, None] + at, tokens)
        place = jnp.zeros(tokens + 1, jnp.int32).at[token.reshape(-1)].set(jnp.arange(token.size, dtype=jnp.int32))
        return cls(row, rows.first[row] + inside, count, token, place[:tokens])


@dataclass(frozen=True)
class Pages:
    """The M blocks into which a launch writes, each of them of one row. block [M]. first, last [M]: its tokens from
    first to last - 1 are new; none of a block of padding. token [M, size]: the launch's token at each place; any where
    there is none."""

    block: Jax
    first: Jax
    last: Jax
    token: Jax

    @classmethod
    def from_rows(cls, rows: Rows, tables: Jax, width: int, size: int) -> Pages:
        """tables [R + 1, blocks]. width: tokens of the longest row at most. size: tokens of a block."""
        number, tokens = len(rows.start), len(rows.row)
        begin, end = rows.first, rows.first + rows.count
        needed = jnp.where(rows.count > 0, (end - 1) // size - begin // size + 1, 0)
        bound = number * ((width + size - 2) // size + 1)
        page = jnp.arange(min(bound, tokens // size + 2 * number) if width > 1 else number)
        ends = jnp.cumsum(needed)
        row = jnp.minimum(jnp.searchsorted(ends, page, side="right"), number - 1)
        inside = page - (ends - needed)[row]
        there = (inside >= 0) & (inside < needed[row])
        place = jnp.where(there, begin[row] // size + inside, 0)
        first, last = (jnp.clip(bound[row] - place * size, 0, size) for bound in (begin, end))
        block = jnp.where(there, tables[row, place], 0)
        position = (place * size)[:, None] + jnp.arange(size)
        token = jnp.clip((rows.start - rows.first)[row][:, None] + position, 0, tokens)
        return cls(block, jnp.where(there, first, 0), jnp.where(there, last, 0), token)


@dataclass(frozen=True)
class AttentionPlan:
    """rows, tiles; tables [R + 1, blocks] int32: of each row, and one of padding, whose blocks are all block 0. width:
    tokens of the longest row at most."""

    rows: Rows
    tiles: Tiles
    tables: Jax
    width: int
