"""Mamba 2's chunks equal its definition, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tessera.reference.chunks import CHUNK
from tessera.reference.mamba2 import chunked, recurrent

ROWS, HEADS, SIZE, STATE = 2, 3, 13, 10


def inputs(width: int) -> tuple[Tensor, ...]:
    """c, b, x, decay and state."""
    random = torch.Generator().manual_seed(width)
    c, b = (torch.randn(ROWS, width, HEADS, STATE, generator=random) for _ in range(2))
    x = torch.randn(ROWS, width, HEADS, SIZE, generator=random)
    decay = -torch.rand(ROWS, width, HEADS, generator=random) * 0.3
    return c, b, x, decay, torch.randn(ROWS, HEADS, SIZE, STATE, generator=random)


@pytest.mark.parametrize("width", [2, 19, CHUNK, CHUNK + 1, 2 * CHUNK + 23])
def test_chunks_equal_the_definition(width: int) -> None:
    tensors = inputs(width)
    for ours, theirs in zip(chunked(*tensors), recurrent(*tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_state_is_what_tokens_wrote_and_the_decay_left() -> None:
    c, b, x, decay, state = inputs(1)
    result, after = recurrent(c, b, x, decay, torch.zeros_like(state))
    torch.testing.assert_close(after, x[:, 0, :, :, None] * b[:, 0, :, None, :])
    torch.testing.assert_close(result, x * (b * c).sum(-1, keepdim=True))
    _, faded = recurrent(c, b, torch.zeros_like(x), decay, state)
    torch.testing.assert_close(faded, state * decay[:, 0].exp()[..., None, None])


def test_padding_changes_no_state() -> None:
    c, b, x, decay, state = inputs(30)
    decay[:, 20:] = x[:, 20:] = 0.0
    b[:, 20:] = c[:, 20:] = 7.0
    short = (one[:, :20] for one in (c, b, x, decay))
    torch.testing.assert_close(chunked(c, b, x, decay, state)[1], chunked(*short, state)[1])
