"""Stands in for the package flashinfer."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.platforms.providers.paged import attend, check

_COPIED = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None,
        mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None, variant_owns_mask=False,
    ):  # fmt: skip
        assert (kv_layout, backend) == ("NHD", "fa2")
        self.captured = use_cuda_graph
        self.kept = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        if use_cuda_graph:
            self.rows = len(qo_indptr_buf) - 1
            assert (len(paged_kv_indptr_buf), len(paged_kv_last_page_len_buf)) == (self.rows + 1, self.rows)
        self.most_tokens = None

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None,
        non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0,
        max_item_len_ptr=None, seq_lens=None, seq_lens_q=None, block_tables=None, max_token_per_sequence=None,
        max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False, uniform_q_len=None,
    ):  # fmt: skip
        given = qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        pages = paged_kv_indptr.diff()
        assert all(tensor.dtype == torch.int32 for tensor in (*given, seq_lens))
        assert (qo_indptr.diff() >= 0).all()
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        assert torch.equal(seq_lens, (pages - 1).clamp(min=0) * page_size + paged_kv_last_page_len)
        assert ((paged_kv_last_page_len >= 1) | (pages == 0)).all()
        assert (paged_kv_last_page_len <= page_size).all()
        if self.captured:
            tokens = int(qo_indptr[-1])
            self.most_tokens = tokens if self.most_tokens is None else self.most_tokens
            assert len(qo_indptr) - 1 == self.rows, "the batch size should be fixed"
            assert tokens <= self.most_tokens, "the total number of rows cannot exceed that of the first plan"
            for kept, values in zip(self.kept, given, strict=True):
                kept[: len(values)].copy_(values)
        else:
            self.kept = tuple(values.clone() for values in given)
        self.tokens = int(qo_indptr[-1])
        self.planned = SimpleNamespace(
            heads=(num_qo_heads, num_kv_heads, head_dim_qk), size=page_size, causal=causal, scale=sm_scale,
            window=window_left, cap=logits_soft_cap, dtype=q_data_type,
        )  # fmt: skip

    def run(
        self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, return_lse=False,
        lse_base="log2", lse_layout="NH", enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, uses_spcompress=None,
    ):  # fmt: skip
        said, (keys, values) = self.planned, paged_kv_cache
        starts, indptr, indices, last = self.kept
        assert len(q) == self.tokens
        assert (q.shape[1], *keys.shape[2:]) == said.heads
        assert (q.dtype, keys.shape[1]) == (said.dtype, said.size)
        pages = indptr.diff()
        table = torch.zeros(len(pages), max(int(pages.max()), 1), dtype=torch.int32)
        table[torch.arange(table.shape[1]) < pages[:, None]] = indices[: int(indptr[-1])]
        lengths = torch.where(pages > 0, (pages - 1) * said.size + last, 0)
        check(q, keys, values, starts, table)
        made, sums = attend(
            q, keys, values, table, starts, lengths, said.scale, causal=said.causal,
            window=(said.window, 0 if said.causal else -1), cap=said.cap,
        )  # fmt: skip
        sums = torch.where(sums == torch.inf, -torch.inf, sums).T
        return (made, sums if lse_base == "ln" else sums / torch.tensor(2.0).log()) if return_lse else made
