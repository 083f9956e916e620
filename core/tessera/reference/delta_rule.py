"""The delta rule: a state is corrected by what it does not yet hold of a key. For each head, the state S [key size,
value size] becomes

    S_t = exp(g_t) S_(t-1);  S_t += k_t (beta_t (v_t - k_t^T S_t))^T;  y_t = q_t^T S_t

with one decay g for each head (Gated Delta Networks, arXiv:2412.06464) or for each element of its keys (Kimi Linear,
arXiv:2510.26692).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.reference.chunks import CHUNK, fading, in_chunks, seen

CHUNK_BY_CHANNEL = 16
"""Smaller, as the decay between two tokens has as many elements as a key."""
_EPS = 1e-6  # in the length of queries and keys


def unit(x: Tensor) -> Tensor:
    """With length 1 along the last dimension."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def recurrent(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, token by token: q and k [R, W, H, Dk], v [R, W, H, Dv], decay (the logarithm) [R, W, H, 1 or Dk],
    beta [R, W, H], state [R, H, Dk, Dv] -> [R, W, H, Dv] and the state behind them."""
    results = []
    for t in range(q.shape[1]):
        state = state * decay[:, t].exp()[..., None]
        error = v[:, t] - torch.einsum("rhk,rhkv->rhv", k[:, t], state)
        state = state + torch.einsum("rhk,rhv->rhkv", k[:, t], beta[:, t, :, None] * error)
        results.append(torch.einsum("rhk,rhkv->rhv", q[:, t], state))
    return torch.stack(results, dim=1), state


def chunked(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same for CHUNK tokens at once, with one decay for each head. Within a chunk, what a token writes depends on
    what those before it wrote: a triangular system, which is solved for all chunks at a time."""
    width = q.shape[1]
    size = min(CHUNK, width)
    q, k, v, decay, beta = (in_chunks(one, size) for one in (q, k, v, decay, beta[..., None]))
    since = decay[..., 0].cumsum(-1)  # [R, H, chunks, size]
    fades = fading(since)
    system = beta * (k @ k.mT) * fades
    writes = _solved(system, torch.cat([beta * v, beta * k * since[..., None].exp()], dim=-1))
    new, read = writes.split((v.shape[-1], k.shape[-1]), dim=-1)
    within = (q @ k.mT) * fades
    q, k = q * since[..., None].exp(), k * (since[..., -1:] - since)[..., None].exp()
    whole = since[..., -1].exp()[..., None, None]
    results = []
    for at in range(q.shape[2]):
        values = new[:, :, at] - read[:, :, at] @ state
        results.append(q[:, :, at] @ state + within[:, :, at] @ values)
        state = whole[:, :, at] * state + k[:, :, at].mT @ values
    return torch.cat(results, dim=2).transpose(1, 2)[:, :width], state


def chunked_by_channel(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for CHUNK_BY_CHANNEL tokens at once, with a decay for each element of a key."""
    width = q.shape[1]
    size = min(CHUNK_BY_CHANNEL, width)
    chunks = (in_chunks(one, size).unbind(2) for one in (q, k, v, decay, beta[..., None]))
    earlier = seen(size, q)[..., None]
    results = []
    for queries, keys, values, decays, betas in zip(*chunks, strict=True):
        since = decays.cumsum(-2)  # [R, H, size, Dk]
        faded = since[..., :, None, :] - since[..., None, :, :]
        faded = keys[..., None, :, :] * torch.where(earlier, faded, -torch.inf).exp()  # [R, H, size, size, Dk]
        system = betas * (keys[..., :, None, :] * faded).sum(-1)
        writes = _solved(system, torch.cat([betas * values, betas * keys * since.exp()], dim=-1))
        new, read = writes.split((v.shape[-1], k.shape[-1]), dim=-1)
        new = new - read @ state
        results.append((queries * since.exp()) @ state + (queries[..., :, None, :] * faded).sum(-1) @ new)
        last = since[..., -1:, :]
        state = last.exp().mT * state + (keys * (last - since).exp()).mT @ new
    return torch.cat(results, dim=2).transpose(1, 2)[:, :width], state


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """x of (1 + the part of `system` below its diagonal) x = right [..., size, n], row by row: what platforms of a few
    torch ops have."""
    rows: list[Tensor] = []
    for at in range(right.shape[-2]):
        row = right[..., at : at + 1, :]
        if rows:
            row = row - system[..., at : at + 1, :at] @ torch.cat(rows, dim=-2)
        rows.append(row)
    return torch.cat(rows, dim=-2)
