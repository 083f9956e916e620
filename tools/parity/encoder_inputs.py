"""What the encoders of tiny encoder-decoders read, of random numbers: one thing for each prompt, some of them the
same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.arrays import int32
from tessera.media.item import digest_of
from tessera.media.placed import PlacedMedia
from tools.parity.images import DIFFERENT, pixels


@dataclass(frozen=True)
class Sounds:
    """Of one family: spectrograms, which its encoder takes as input_features [1, bins, frames]."""

    bins: int
    frames: int
    # Positions of the encoder.
    length: int
    # What transformers' model calls the tokens of a text.
    tokens: ClassVar[str] = "decoder_input_ids"
    # No token stands for a sound.
    token: ClassVar[None] = None

    def placed(self, prompts: Sequence[Sequence[int]]) -> list[list[PlacedMedia]]:
        """For each prompt, what its encoder reads."""
        draw = random.Random(0)
        inputs = [{"input_features": pixels(draw, 1, self.bins, self.frames)} for _ in range(DIFFERENT)]
        known = [PlacedMedia("audio", digest_of(one), int32(()), one, self.length) for one in inputs]
        return [[known[number * 2 // 3 % DIFFERENT]] for number in range(len(prompts))]

    def arguments(self, media: Sequence[PlacedMedia], length: int) -> dict[str, Tensor]:
        """As transformers' model takes it."""
        (one,) = media
        return {name: torch.from_numpy(value) for name, value in one.inputs.items()}
