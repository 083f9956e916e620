"""The causal convolution of rows that go on equals that of the whole text."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.reference.convolution import causal_convolution
from tessera.reference.state_grid import StateGrid

CHANNELS = 7


def grid_of(slots: list[int], lengths: list[int], fresh: list[bool]) -> StateGrid:
    none = torch.zeros(0, dtype=torch.int64)
    return StateGrid(none, none, torch.tensor(slots), torch.tensor(lengths), torch.tensor(fresh))


@pytest.mark.parametrize("kernel", [2, 3, 7])
def test_in_chunks_it_is_that_of_the_whole_text(kernel: int) -> None:
    random = torch.Generator().manual_seed(kernel)
    inputs, weight = torch.randn(2, 16, CHANNELS, generator=random), torch.randn(CHANNELS, kernel, generator=random)
    padded = F.pad(inputs.transpose(1, 2), (kernel - 1, 0))
    whole = F.conv1d(padded, weight[:, None], groups=CHANNELS).transpose(1, 2)
    state = torch.full((4, CHANNELS, kernel - 1), torch.nan)
    parts: list[Tensor] = []
    for start, stop in ((0, 5), (5, 6), (6, 7), (7, 16)):
        grid = grid_of([3, 1], [stop - start] * 2, [start == 0] * 2)
        parts.append(causal_convolution(inputs[:, start:stop], weight, state, grid))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert state[[0, 2]].isnan().all(), "the slots of others"


def test_a_shorter_row_goes_on_behind_its_own_end() -> None:
    inputs, weight = torch.arange(10.0).view(2, 5, 1), torch.ones(1, 3)
    state = torch.zeros(2, 1, 2)
    causal_convolution(inputs, weight, state, grid_of([0, 1], [5, 1], [True, False]))
    assert state.tolist() == [[[3.0, 4.0]], [[0.0, 5.0]]]
