"""Attention by torch's scaled dot product under a mask, which the Neuron compiler turns into its own kernels."""

from __future__ import annotations

from tessera.platform import MaskedAttention

BLOCK, LEAST_BLOCK = 128, 16
"""Tokens of a block, and the fewest that it may have. 128 are the partitions of a NeuronCore's on-chip memory."""


class SdpaAttention(MaskedAttention):
    name = "sdpa"
    blocks = (BLOCK, LEAST_BLOCK)
