"""Rotary embedding with torch: angles are looked up once per launch, and queries and keys are rotated together.
Overhead dominates small operations in a decode step, so there are few of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, RotarySpec

Angles = tuple[Tensor, Tensor]


def angles(spec: RotarySpec, cos_sin: Tensor, positions: Tensor, dtype: torch.dtype) -> Angles:
    """For each token, the factors of a head and those of its swapped halves (or neighbours), [T, 1, dim] each."""
    cos, sin = cos_sin[positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
    if spec.style == "half":
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return cos.repeat_interleave(2, dim=-1), torch.stack((-sin, sin), dim=-1).flatten(-2)


def rotate(spec: RotarySpec, heads: Tensor, factors: Angles) -> Tensor:
    """Rotates heads [T, H, D]."""
    cos, sin = factors
    part = heads[..., : spec.dim] if spec.dim < spec.head_dim else heads
    result = torch.addcmul(part * cos, _swapped(spec, part), sin)
    return torch.cat((result, heads[..., spec.dim :]), dim=-1) if spec.dim < spec.head_dim else result


def _swapped(spec: RotarySpec, part: Tensor) -> Tensor:
    if spec.style == "half":
        left, right = part.chunk(2, dim=-1)
        return torch.cat((right, left), dim=-1)
    return part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


TILE = 1 << 19
"""Elements of queries or keys that are rotated at a time: what is computed of them in float32 stays in a cache of the
second level."""


class Rotary(Kernel[RotarySpec]):
    """In float32, part by part."""

    def batch_invariant(self, spec: RotarySpec) -> None:
        """Products and sums are operations of their own, so torch fuses none."""

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Any:
        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            rows = max(TILE // max(q[0].numel(), 1), 1) if len(q) else 1
            for first in range(0, len(q), rows):
                factors = angles(spec, cos_sin, positions[first : first + rows], torch.float32)
                for heads in (q, k):
                    _rotate_in_place(spec, heads[first : first + rows, :, : spec.dim], factors)

        return rotary


def _rotate_in_place(spec: RotarySpec, part: Tensor, factors: Angles) -> None:
    """part [T, H, dim]."""
    cos, sin = factors
    wide = part.float()
    other = _swapped(spec, wide).mul_(sin)
    part.copy_((wide * cos).add_(other))
