"""Attention by torch's scaled dot product under a mask, which the Neuron compiler turns into its own kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.platform import MaskedAttention

BLOCK, LEAST_BLOCK = 128, 16
"""Tokens of a block, and the fewest that it may have. 128 are the partitions of a NeuronCore's on-chip memory."""


class SdpaAttention(MaskedAttention):
    name = "sdpa"
    blocks = (BLOCK, LEAST_BLOCK)

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
