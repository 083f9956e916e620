"""The states of a recurrence without products between elements, for many tokens at once (parallel scan)."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.reference.chunks import CHUNK


def scanned(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """S_t = decay_t S_(t-1) + added_t behind each token: decay and added [R, W, ...], state [R, ...] -> [R, W, ...]."""
    results = []
    for some, more in zip(decay.split(CHUNK, dim=1), added.split(CHUNK, dim=1), strict=True):
        results.append(_of_a_chunk(some, more, state))
        state = results[-1][:, -1]
    return torch.cat(results, dim=1)


def _of_a_chunk(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """What a token adds and what it leaves are joined with those of the tokens before it, of twice as many each
    time."""
    reach = 1
    while reach < decay.shape[1]:
        own, earlier = slice(reach, None), slice(None, -reach)
        joined = added[:, own] + decay[:, own] * added[:, earlier]
        added = torch.cat([added[:, :reach], joined], dim=1)
        decay = torch.cat([decay[:, :reach], decay[:, own] * decay[:, earlier]], dim=1)
        reach *= 2
    return decay * state[:, None] + added
