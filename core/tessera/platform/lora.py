"""What a platform's own runner reads of a LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tessera.platform.device import Tensor


class LoraWeights(NamedTuple):
    """An adapter: the result of a layer gets scale * (x A^T) B^T added."""

    scale: float
    # A [rank, inputs] and B [outputs, rank] by the layer's name in the model's checkpoint, in host memory, as stored
    layers: Mapping[str, tuple[Tensor, Tensor]]
