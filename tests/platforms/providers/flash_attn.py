"""Stands in for the package flash_attn."""

from __future__ import annotations

import torch

from tests.platforms.providers.paged import attend, check


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    check(q, k, v, cu_seqlens_q, cu_seqlens_k, block_table)
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    rows = len(cu_seqlens_q) - 1
    assert len(block_table) == rows == len(cu_seqlens_k) - 1
    lengths = cu_seqlens_k.diff()
    assert max_seqlen_q >= cu_seqlens_q.diff().max()
    assert max_seqlen_k >= lengths.max()
    # With one query a row and heads that share keys, it takes token i for row i.
    assert max_seqlen_q > 1 or len(q) == rows
    out, sums = attend(
        q, k, v, block_table, cu_seqlens_q, lengths, softmax_scale, causal=causal, window=window_size, cap=softcap
    )
    return (out, sums, torch.empty(0)) if return_attn_probs else out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    check(q, k_cache, v_cache, cache_seqlens, block_table)
    assert k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    rows, width = q.shape[:2]
    assert len(cache_seqlens) == len(block_table) == rows
    out, sums = attend(
        q.flatten(0, 1), k_cache, v_cache, block_table, torch.arange(rows + 1) * width, cache_seqlens, softmax_scale,
        causal=causal, window=window_size, cap=softcap,
    )  # fmt: skip
    out = out.view(q.shape)
    return (out, sums.view(-1, rows, width).transpose(0, 1)) if return_softmax_lse else out
