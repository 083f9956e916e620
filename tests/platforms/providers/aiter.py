"""Stands in for the modules of AMD's package aiter."""

from __future__ import annotations

import torch

from tests.platforms.providers.paged import attend, check

_TILE = 64  # the most keys that a program multiplies at a time


def unified_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, block_table,
    softcap, q_descale, k_descale, v_descale, q_scales=None, alibi_slopes=None, output_scale=None, qq_bias=None,
    sinks=None, shuffled_kv_cache=False, skip_reduce=False,
):  # fmt: skip
    assert causal, "Only causal attention is supported"
    assert k.shape[1] % (2 * _TILE) == 0, "a tile as large as a block is read beyond the row's last key"
    assert (q_descale, k_descale, v_descale) == (None, None, None)
    check(q, k, v, cu_seqlens_q, seqused_k, block_table)
    rows, asked = len(seqused_k), cu_seqlens_q.diff()
    assert len(block_table) == rows == len(asked)
    assert out.shape == q.shape
    assert sinks is None or len(sinks) == q.shape[1]
    assert max_seqlen_q >= asked.max()
    assert max_seqlen_k >= seqused_k.max()
    # With one query a row, it takes token i for row i.
    assert max_seqlen_q > 1 or torch.equal(cu_seqlens_q, torch.arange(rows + 1, dtype=torch.int32))
    made, _ = attend(
        q, k, v, block_table, cu_seqlens_q, seqused_k, softmax_scale, causal=True, window=window_size, cap=softcap,
        sinks=sinks,
    )  # fmt: skip
    made[torch.repeat_interleave(seqused_k == 0, asked)] = torch.nan  # with split keys it divides by their number
    return out.copy_(made)
