"""Rotary embedding on torch: angles looked up once a launch, queries and keys turned together."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.platform import RotarySpec

Angles = tuple[Tensor, Tensor]


def angles(cos_sin: Tensor, positions: Tensor, dtype: torch.dtype) -> Angles:
    """Of each token, cosines and sines [T, 1, dim / 2]."""
    cos, sin = cos_sin[positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
    return cos, sin


def turn(spec: RotarySpec, heads: Tensor, given: Angles) -> None:
    """heads [T, H, D], in place."""
    cos, sin = given
    turned = heads[..., : spec.dim]
    if spec.style == "half":
        a, b = turned.chunk(2, dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
    first = torch.addcmul(a * cos, b, sin, value=-1)
    second = torch.addcmul(b * cos, a, sin)
    a.copy_(first)
    b.copy_(second)


def rotary(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """The op as core has it."""
    given = angles(cos_sin, positions, q.dtype)
    turn(spec, q, given)
    turn(spec, k, given)
