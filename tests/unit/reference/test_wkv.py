"""What RWKV's time mixing sums for all tokens at once equals its definition, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tessera.reference.wkv import NOTHING, Sums, recurrent, scanned

ROWS, CHANNELS = 2, 13


def sums(*shape: int, spread: float, random: torch.Generator) -> Sums:
    a, b, m = (torch.randn(ROWS, *shape, CHANNELS, generator=random) for _ in range(3))
    return a, b.abs(), spread * m


@pytest.mark.parametrize("width", [1, 2, 11, 64, 71])
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_all_at_once_equals_the_definition(width: int, spread: float) -> None:
    random = torch.Generator().manual_seed(width)
    added, before = (sums(*shape, spread=spread, random=random) for shape in ((width,), ()))
    faded = -torch.randn(ROWS, width, CHANNELS, generator=random).exp()
    added[0][0, width // 2 :], added[1][0, width // 2 :], added[2][0, width // 2 :] = 0.0, 0.0, NOTHING  # padding
    faded[0, width // 2 :] = 0.0
    before[0][1], before[1][1], before[2][1] = 0.0, 0.0, NOTHING  # at its beginning
    ours, expected = (means(rule(added, faded, before)) for rule in (scanned, recurrent))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)


def means(result: Sums) -> tuple[Tensor, Tensor]:
    """Averages, and the logarithms of all weights: sums alone may be divided by any number."""
    a, b, m = result
    return torch.where(b > 0, a / b, 0.0), torch.where(b > 0, b.log() + m, 0.0)
