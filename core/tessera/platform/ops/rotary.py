"""Positions, turned into queries and keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RotarySpec:
    """Rotary embedding of the first `dim` elements of each head. style "half" pairs i with i + dim/2, "pairs" 2i with
    2i + 1."""

    head_dim: int
    dim: int
    style: str = "half"
