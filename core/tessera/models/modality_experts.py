"""A decoder with experts for tokens of text and others for those of images, beside an MLP that both use. ERNIE 4.5,
Technical Report (2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.mlp import Experts, MixtureOfExperts
from tessera.models.decoder import Decoder, DecoderConfig, PreNormBlock
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden


class ModalityExperts:
    """text: has the MLP that all tokens use. seen [T, 1]: which tokens of the next call are of an image; None if none
    is."""

    wants = None
    seen: Tensor | None = None

    def __init__(self, text: MixtureOfExperts, images: MixtureOfExperts) -> None:
        self.text, self.images = text, images

    def __call__(self, x: Tensor) -> Tensor:
        chosen = self.text.chosen(x)
        if self.seen is not None:
            chosen = torch.where(self.seen, self.images.chosen(x), chosen)
        return self.text.joined(x, chosen)


class ModalityBlock(PreNormBlock):
    """images: the experts for tokens of images."""

    mlp: Any

    def __init__(
        self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable, *, images: Experts
    ) -> None:
        super().__init__(build, config, number, tables)
        if isinstance(self.mlp, MixtureOfExperts):
            others = MixtureOfExperts(build, images, number, config.hidden, config.activation)
            self.mlp = ModalityExperts(self.mlp, others)


class ModalityDecoder(Decoder):
    """seen [T, 1]: which tokens of the next pass are of an image; None if none is."""

    blocks: Sequence[ModalityBlock]
    seen: Tensor | None = None

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        self._tell(self.seen)
        return super().forward(x, launch, caches, residual)

    def end(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> Hidden:
        """The experts of the last block see the tokens alone whose logits are needed."""
        self._tell(None if self.seen is None else launch.select_logits(self.seen))
        return super().end(x, residual, launch, caches)

    def _tell(self, seen: Tensor | None) -> None:
        for block in self.blocks:
            if isinstance(block.mlp, ModalityExperts):
                block.mlp.seen = seen
