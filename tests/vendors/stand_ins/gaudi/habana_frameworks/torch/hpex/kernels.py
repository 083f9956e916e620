"""Fused kernels, under their documented names."""

from __future__ import annotations

from enum import Enum

import torch


class FusedSDPA:
    @staticmethod
    def apply(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="None",
        recompute=None, valid_seq_len=None, seq_padding_type="left",
    ):  # fmt: skip
        return torch.ops.hpu.sdpa_recomp_fwd(
            query, key, value, attn_mask, dropout_p, scale, is_causal, False, softmax_mode, valid_seq_len,
            seq_padding_type,
        )  # fmt: skip


class RotaryPosEmbeddingMode(Enum):
    BLOCKWISE = 0
    PAIRWISE = 1


def apply_rotary_pos_emb(p, cos, sin, position_ids=None, offset=0, mode=RotaryPosEmbeddingMode.BLOCKWISE):
    return torch.ops.hpu.rotary_pos_embedding(p, sin, cos, position_ids, offset, mode.value)
