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


def _inputs(spec: RotarySpec, make: TrialInputs) -> tuple[Any, ...]:
    angles = torch.outer(torch.arange(64.0), 100.0 ** -torch.linspace(0, 1, spec.dim // 2))
    q, k = (make.normal(make.tokens, heads, spec.head_dim, dtype=make.dtype) for heads in (6, 2))
    return q, k, make.integers(0, 64, make.tokens), torch.cat((angles.cos(), angles.sin()), dim=-1)


OPS = (
    Op(
        "rotary",
        "core",
        rotary,
        mutates=("q", "k"),
        any_dtype=True,
        sample_specs=_specs,
        inputs=_inputs,
        served_spec=lambda _: RotarySpec(64, 64, "half"),
    ),
)
