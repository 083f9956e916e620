"""Mamba's chunks equal its definition, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tessera.reference.mamba import CHUNK, chunked, recurrent

ROWS, CHANNELS, STATE = 2, 13, 5


def inputs(width: int) -> tuple[Tensor, ...]:
    """c, b, x, step, rate and state."""
    random = torch.Generator().manual_seed(width)
    c, b = (torch.randn(ROWS, width, STATE, generator=random) for _ in range(2))
    x = torch.randn(ROWS, width, CHANNELS, generator=random)
    step = torch.rand(ROWS, width, CHANNELS, generator=random)
    rate = -torch.rand(CHANNELS, STATE, generator=random)
    return c, b, x, step, rate, torch.randn(ROWS, CHANNELS, STATE, generator=random)


@pytest.mark.parametrize("width", [2, 11, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_chunks_equal_the_definition(width: int) -> None:
    tensors = inputs(width)
    for ours, theirs in zip(chunked(*tensors), recurrent(*tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_large_steps_leave_nothing_of_what_was() -> None:
    c, b, x, step, rate, state = inputs(CHUNK)
    for ours, theirs in zip(
        chunked(c, b, x, step * 1e6, rate, state), recurrent(c, b, x, step * 1e6, rate, state), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_state_is_what_tokens_wrote_and_the_decay_left() -> None:
    c, b, x, step, rate, state = inputs(1)
    result, after = recurrent(c, b, x, step, rate, torch.zeros_like(state))
    torch.testing.assert_close(after, x[:, 0, :, None] * b[:, 0, None, :])
    torch.testing.assert_close(result, x * (b * c).sum(-1, keepdim=True))
    _, faded = recurrent(c, b, torch.zeros_like(x), step, rate, state)
    torch.testing.assert_close(faded, state * (step[:, 0, :, None] * rate).exp())


def test_padding_changes_no_state() -> None:
    c, b, x, step, rate, state = inputs(30)
    step[:, 20:] = x[:, 20:] = 0.0
    b[:, 20:] = c[:, 20:] = 7.0
    short = (one[:, :20] for one in (c, b, x, step))
    torch.testing.assert_close(chunked(c, b, x, step, rate, state)[1], chunked(*short, rate, state)[1])
