"""What attention over pages is: of each row, its queries over the keys that its block table names."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    starts: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    causal: bool,
    window: tuple[int, int],
    cap: float,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q [T, H, D]; keys, values [pages, size, Hk, D]; table [R, pages of a row]; starts [R + 1] of queries; lengths [R]
    of keys. The last query of a row stands at its last key. window: how many keys before and after its own a query
    sees, -1 for all. Returns [T, H, D], zeros where a query sees nothing, and the log-sum-exp of scores [H, T]."""
    out, sums = torch.full_like(q, torch.nan), torch.full((q.shape[1], len(q)), torch.inf)
    group, size = q.shape[1] // keys.shape[2], keys.shape[1]
    assert starts[0] == 0
    assert starts[-1] == len(q)
    for row in range(len(table)):
        first, last, length = int(starts[row]), int(starts[row + 1]), int(lengths[row])
        for token in range(first, last):
            at = length - (last - token)
            left = 0 if window[0] < 0 else max(at - window[0], 0)
            right = length if window[1] < 0 and not causal else at + 1 + (0 if causal else window[1])
            seen = torch.arange(left, max(min(right, length), left))
            if not len(seen):
                out[token] = 0
                continue
            page, place = table[row].long()[seen // size], seen % size
            k, v = (x[page, place].float().repeat_interleave(group, 1) for x in (keys, values))
            scores = torch.einsum("hd,khd->hk", q[token].float(), k) * scale
            scores = torch.tanh(scores / cap) * cap if cap else scores
            whole = scores if sinks is None else torch.cat((scores, sinks.float()[:, None]), 1)
            sums[:, token] = torch.logsumexp(whole, 1)
            weights = torch.exp(scores - sums[:, token, None])
            out[token] = torch.einsum("hk,khd->hd", weights, v).to(q.dtype)
    return out, sums


def check(q: Tensor, keys: Tensor, values: Tensor, *indices: Tensor) -> None:
    """What all of them demand."""
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert {keys.dtype, values.dtype} == {q.dtype}
    assert q.shape[-1] == keys.shape[-1] <= 256
    assert q.shape[-1] % 8 == 0
    assert keys.shape == values.shape
    assert q.shape[-2] % keys.shape[2] == 0
    for tensor in (q, keys, values, *indices):
        assert tensor.stride(-1) == 1
    for index in indices:
        assert index.dtype == torch.int32
