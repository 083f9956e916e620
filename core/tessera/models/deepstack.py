"""A decoder that is shown images at several depths: behind each of its first layers, further features are added to the
hidden states of an image's tokens. DeepStack, arXiv:2406.04334."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tessera.models.decoder import Decoder
from tessera.models.fields import RefusedTypeError
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden


class DeepstackDecoder(Decoder):
    """added: what is added behind each of the first layers in the next pass, [T, hidden] each, 0 for other tokens; it
    is set for a pass with images. Never behind the last layer."""

    added: Sequence[Tensor] = ()

    def add_behind(self, layers: Sequence[int]) -> None:
        """layers: numbers of those behind which something will be added. Raises RefusedTypeError for others than the
        first ones."""
        if list(layers) != list(range(len(layers))) or len(layers) >= len(self.blocks):
            raise RefusedTypeError("its text model does not take features behind those of its layers")

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if not self.added:
            return super().forward(x, launch, caches, residual)
        for number, block in enumerate(self.blocks[:-1]):
            x, residual = block.transform(block.attend(x, residual, launch, caches))
            if number < len(self.added):
                x = x + self.added[number]
        return self.end(x, residual, launch, caches)
