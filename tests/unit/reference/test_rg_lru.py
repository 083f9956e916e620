"""What a recurrent unit computes of all tokens at once equals its definition, token by token."""

from __future__ import annotations

import pytest
import torch

from tessera.reference.parallel_scan import scanned
from tessera.reference.rg_lru import recurrent


@pytest.mark.parametrize("width", [1, 2, 11, 64, 71])
def test_all_at_once_equals_the_definition(width: int) -> None:
    random = torch.Generator().manual_seed(width)
    decay = torch.rand(2, width, 13, generator=random)
    decay[:, ::5] = 0.0  # forgets all
    decay[:, 3::7] = 1.0
    added = torch.randn(2, width, 13, generator=random)
    state = torch.randn(2, 13, generator=random)
    torch.testing.assert_close(scanned(decay, added, state), recurrent(decay, added, state), rtol=1e-5, atol=1e-5)
