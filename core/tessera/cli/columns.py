"""Rows of cells as lines, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Each column as wide as its widest cell, but the last, which may be of any length. rows: of one length."""
    listed = list(rows)
    widths = [max(map(len, cells)) for cells in zip(*listed, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in listed]
