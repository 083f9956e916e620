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


def cos_sin(rope: Rope, positions: int, device: torch.device) -> Tensor:
    """[positions, dim] float32: cosines, then sines. device: the host's, or meta for the shape alone."""
    scaling = rope.scaling
    frequencies = unscaled(rope.theta, rope.dim) if scaling is None else scaling.frequencies(rope.theta, rope.dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), frequencies.to(device))
    # Into one table: for millions of positions it has gigabytes, and copies of it as many more.
    table = angles.new_empty(positions, rope.dim)
    cosines, sines = table.chunk(2, dim=-1)
    torch.cos(angles, out=cosines)
    torch.sin(angles, out=sines)
    return table if scaling is None else table.mul_(scaling.attention_factor)
