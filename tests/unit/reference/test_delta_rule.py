"""The delta rule's chunks equal its definition, token by token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tessera.reference.chunks import CHUNK
from tessera.reference.delta_rule import CHUNK_BY_CHANNEL, chunked, chunked_by_channel, recurrent

ROWS, HEADS, KEYS, VALUES = 2, 3, 10, 13
Rule = Callable[..., tuple[Tensor, Tensor]]


def inputs(width: int, decays: int = 1, *, alike: bool = False) -> tuple[Tensor, ...]:
    """q, k, v, decay, beta and state. decays: of a head. alike: every token has the same key, and replaces what is
    stored for it."""
    random = torch.Generator().manual_seed(width)
    q, k = (torch.randn(ROWS, width, HEADS, KEYS, generator=random) for _ in range(2))
    if alike:
        k = k[:, :1].expand_as(k)
    v = torch.randn(ROWS, width, HEADS, VALUES, generator=random)
    decay = -torch.rand(ROWS, width, HEADS, decays, generator=random) * (0.0 if alike else 0.3)
    beta = torch.rand(ROWS, width, HEADS, generator=random).clamp(1.0 if alike else 0.0)
    state = torch.randn(ROWS, HEADS, KEYS, VALUES, generator=random)
    k = k / k.norm(dim=-1, keepdim=True)
    return q, k, v, decay, beta, state


RULES = [
    *((chunked, 1, width) for width in (2, 19, CHUNK, CHUNK + 1, 2 * CHUNK + 23)),
    *((chunked_by_channel, KEYS, width) for width in (2, CHUNK_BY_CHANNEL, CHUNK_BY_CHANNEL + 1, 55)),
]


@pytest.mark.parametrize(("rule", "decays", "width"), RULES)
@pytest.mark.parametrize("alike", [False, True])
def test_chunks_equal_the_definition(rule: Rule, decays: int, width: int, alike: bool) -> None:
    tensors = inputs(width, decays, alike=alike)
    for ours, theirs in zip(rule(*tensors), recurrent(*tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_decays_of_a_head_that_are_alike_are_one() -> None:
    q, k, v, decay, beta, state = inputs(40)
    found = chunked_by_channel(q, k, v, decay.expand_as(k), beta, state)
    for ours, theirs in zip(found, chunked(q, k, v, decay, beta, state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_fast_decays_are_finite() -> None:
    q, k, v, decay, beta, state = inputs(40, KEYS)
    for one in chunked_by_channel(q, k, v, 1000 * decay, beta, state):
        assert one.isfinite().all()


def test_a_token_replaces_what_its_key_stands_for() -> None:
    *_, state = inputs(1)
    key, value = torch.zeros(ROWS, 1, HEADS, KEYS), torch.ones(ROWS, 1, HEADS, VALUES)
    key[..., 0] = 1.0
    still, whole = torch.zeros(ROWS, 1, HEADS, 1), torch.ones(ROWS, 1, HEADS)
    result, after = recurrent(key, key, value, still, whole, state)
    assert torch.equal(after[:, :, 1:], state[:, :, 1:])
    torch.testing.assert_close(after[:, :, 0], value[:, 0])
    torch.testing.assert_close(result, value)


@pytest.mark.parametrize(("rule", "decays"), [(chunked, 1), (chunked_by_channel, KEYS)])
def test_padding_changes_no_state(rule: Rule, decays: int) -> None:
    q, k, v, decay, beta, state = inputs(30, decays)
    decay[:, 20:] = beta[:, 20:] = 0.0
    k[:, 20:], v[:, 20:] = 7.0, 9.0
    short = (one[:, :20] for one in (q, k, v, decay, beta))
    torch.testing.assert_close(rule(q, k, v, decay, beta, state)[1], rule(*short, state)[1])
