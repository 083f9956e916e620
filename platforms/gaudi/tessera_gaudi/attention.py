"""Attention by SynapseAI's FusedSDPA over blocks of tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import LayerSpec, MaskedAttention, Reason

SOFTMAX = "None"
"""FusedSDPA's softmax that is not approximate."""


class FusedAttention(MaskedAttention):
    """fused: habana_frameworks' FusedSDPA, or the reason why it is not there."""

    name = "fused_sdpa"

    def __init__(self, torch: Any, blocks: tuple[int, ...], fused: Any) -> None:
        super().__init__(torch, blocks)
        self.fused = fused

    def supports(self, spec: LayerSpec) -> Reason | None:
        return self.fused if isinstance(self.fused, str) else super().supports(spec)

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        mixed: Tensor = self.fused.apply(q, k, v, mask, 0.0, False, scale, SOFTMAX, True)
        return mixed
