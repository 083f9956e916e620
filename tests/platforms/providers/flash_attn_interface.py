"""Stands in for the module flash_attn_interface of the package flash_attn_3."""

from __future__ import annotations

import torch

from tests.platforms.providers.paged import attend, check


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
    max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
    causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    rows = len(page_table)
    given = cu_seqlens_q is not None
    assert (q.dim() == 3) is given
    starts = cu_seqlens_q if given else torch.arange(rows + 1, dtype=torch.int32) * q.shape[1]
    check(q, k_cache, v_cache, cache_seqlens, page_table, starts)
    assert len(cache_seqlens) == rows == len(starts) - 1
    assert not given or max_seqlen_q >= starts.diff().max()
    flat = q if given else q.flatten(0, 1)
    out, sums = attend(
        flat, k_cache, v_cache, page_table, starts, cache_seqlens, softmax_scale, causal=causal, window=window_size,
        cap=softcap,
    )  # fmt: skip
    if not given:
        out, sums = out.view(q.shape), sums.view(-1, rows, q.shape[1]).transpose(0, 1)
    return (out, sums, None, None) if return_softmax_lse else out
