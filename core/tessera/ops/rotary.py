"""Rotary position embedding of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform.ops import Op, TrialInputs

__all__ = ["RotarySpec"]


@dataclass(frozen=True)
class RotarySpec:
    """Rotary embedding of the first `dim` elements of each head. style "half" pairs i with i + dim/2, "pairs" 2i with
    2i + 1."""

    head_dim: int
    dim: int
    style: str = "half"


def rotary(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """q [T, H, D] act; k [T, Hk, D] act; positions [T] int32; cos_sin [positions, dim] float32, cosines then sines ->
    nothing

    Rotates q and k in place. RoFormer, arXiv:2104.09864."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    for heads in (q, k):
        turned = heads[..., : spec.dim].float()
        if spec.style == "half":
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        heads[..., : spec.dim] = turned.to(heads.dtype)


def _specs() -> Iterator[RotarySpec]:
    for style in ("half", "pairs"):
        yield RotarySpec(24, 24, style)
        yield RotarySpec(40, 16, style)


def _large() -> Iterator[tuple[RotarySpec, int]]:
    """Positions beyond 16 bits, and heads of the sizes that models have."""
    for style in ("half", "pairs"):
        yield RotarySpec(8, 8, style), _FAR
    for head_dim, dim in ((64, 64), (80, 80), (96, 96), (128, 128), (192, 64), (256, 256)):
        yield RotarySpec(head_dim, dim), 3


_FAR = 40  # tokens, whose positions are far from the beginning
_HEADS = {2: (6, 1), 133: (40, 5), _FAR: (7, 1)}
"""Of queries and keys, by tokens."""
_DIFFERENT = 97.0  # angles, of which a long table has each many times: positions cut to any number of bits still show


def _inputs(spec: RotarySpec, make: TrialInputs) -> tuple[Any, ...]:
    length = 140_000 if make.tokens == _FAR else 64
    angles = torch.outer(torch.arange(_DIFFERENT), 100.0 ** -torch.linspace(0, 1, spec.dim // 2))
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)[torch.arange(length) % len(angles)]
    heads = _HEADS.get(make.tokens, (6, 2))
    q, k = (make.normal(make.tokens, number, spec.head_dim, dtype=make.dtype) for number in heads)
    return q, k, make.integers(0, length, make.tokens), table


OPS = (
    Op(
        "rotary",
        "core",
        rotary,
        mutates=("q", "k"),
        any_dtype=True,
        sample_specs=_specs,
        large_samples=_large,
        inputs=_inputs,
        served_spec=lambda _: RotarySpec(64, 64, "half"),
    ),
)
