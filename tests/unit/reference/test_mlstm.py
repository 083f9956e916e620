"""mLSTM's chunks equal its definition, token by token."""

from __future__ import annotations

import pytest
import torch

from tessera.reference.chunks import CHUNK
from tessera.reference.mlstm import chunked, recurrent

ROWS, HEADS, KEY, VALUE = 2, 3, 5, 7


@pytest.mark.parametrize("width", [2, 11, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
@pytest.mark.parametrize("gates", [1.0, 15.0])
def test_chunks_equal_the_definition(width: int, gates: float) -> None:
    random = torch.Generator().manual_seed(width)
    q, k = (torch.randn(ROWS, width, HEADS, KEY, generator=random) for _ in range(2))
    v = torch.randn(ROWS, width, HEADS, VALUE, generator=random)
    taken, f = (gates * torch.randn(ROWS, width, HEADS, generator=random) for _ in range(2))
    kept = torch.nn.functional.logsigmoid(f)
    taken[0, width // 2 :], kept[0, width // 2 :] = -torch.inf, 0.0  # padding
    memory = torch.randn(ROWS, HEADS, KEY, VALUE, generator=random), torch.randn(ROWS, HEADS, generator=random)
    ours, expected = (rule(q, k, v, taken, kept, memory) for rule in (chunked, recurrent))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
