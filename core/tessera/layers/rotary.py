"""Tables of cosines and sines for rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.layers.rope_scaling import Scaling, unscaled


@dataclass(frozen=True)
class Rope:
    """dim: rotated elements of a head."""

    dim: int
    theta: float = 10000.0
    scaling: Scaling | None = None


def cos_sin(rope: Rope, positions: int) -> Tensor:
    """[positions, dim] float32: cosines, then sines."""
    scaling = rope.scaling
    frequencies = unscaled(rope.theta, rope.dim) if scaling is None else scaling.frequencies(rope.theta, rope.dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table if scaling is None else table * scaling.attention_factor
