"""Angles of each element of a head turn it as the op does, which has them once for each pair."""

from __future__ import annotations

import pytest
import torch

from tessera.ops import REFERENCE, RotarySpec
from tessera.platform import rotary_angles

TOKENS, HEADS, DIM = 5, 3, 8


def turned(x: torch.Tensor, style: str) -> torch.Tensor:
    """What the sines multiply."""
    if style == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


@pytest.mark.parametrize("style", ["half", "pairs"])
def test_each_element_has_the_angle_of_its_pair(style: str) -> None:
    angles = torch.outer(torch.arange(20.0), 10.0 ** -torch.linspace(0, 1, DIM // 2))
    cos_sin, positions = torch.cat((angles.cos(), angles.sin()), dim=-1), torch.tensor([0, 7, 19, 7, 3])
    cos, sin = rotary_angles(cos_sin, positions, style)
    assert cos.shape == sin.shape == (TOKENS, 1, DIM)
    q, k = (torch.randn(TOKENS, HEADS, DIM, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    expected = [q.clone(), k.clone()]
    assert REFERENCE["rotary"].reference is not None
    REFERENCE["rotary"].reference(RotarySpec(DIM, DIM, style), *expected, positions, cos_sin)
    for heads, right in zip((q, k), expected, strict=True):
        torch.testing.assert_close(heads * cos + turned(heads, style) * sin, right)
