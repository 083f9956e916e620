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


class Rotary(Kernel[RotarySpec]):
    def batch_invariant(self, spec: RotarySpec) -> None:
        """In 16 bits the products are exact in float32, so it does not matter where torch fuses them with the sum."""

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Any:
        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            factors = angles(spec, cos_sin, positions, q.dtype)
            for heads in (q, k):
                heads.copy_(rotate(spec, heads, factors))

        return rotary
