"""Rows of tokens in chunks, as the chunked forms of state mixers compute them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64
"""Tokens of a chunk."""


def in_chunks(x: Tensor, size: int) -> Tensor:
    """[R, W, H, n] -> [R, H, chunks, size, n], zeros behind the end."""
    missing = -x.shape[1] % size
    return F.pad(x, (0, 0, 0, 0, 0, missing)).transpose(1, 2).unflatten(2, (-1, size))


def seen(size: int, like: Tensor) -> Tensor:
    """[size, size]: whether a token, of the columns, is at or before one of the rows, on the device of `like`."""
    return torch.ones(size, size, dtype=torch.bool, device=like.device).tril()


def fading(since: Tensor) -> Tensor:
    """[..., size, size]: what is left at a token of what another wrote, 0 if that is a later one. since [..., size]:
    the sum of the logarithms of decays from the chunk's beginning."""
    return torch.where(seen(since.shape[-1], since), since[..., :, None] - since[..., None, :], -torch.inf).exp()
