"""What the encoders of tiny encoder-decoders read, of random numbers: one thing for each prompt, some of them the
same."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import int32
from tessera.config.sound_encoder import SoundEncoder
from tessera.media.item import digest_of
from tessera.media.placed import PlacedMedia
from tessera.media.source_text import source_text
from tools.parity.images import DIFFERENT, pixels


class EncoderInputs(ABC):
    """Of one family."""

    # What transformers' model calls the tokens of a text.
    tokens: ClassVar[str] = "decoder_input_ids"
    # No token stands for what an encoder reads.
    token: ClassVar[None] = None

    def placed(self, prompts: Sequence[Sequence[int]]) -> list[list[PlacedMedia]]:
        """For each prompt, what its encoder reads."""
        draw = random.Random(0)
        known = [self.draw(draw, number) for number in range(DIFFERENT)]
        return [[known[number * 2 // 3 % DIFFERENT]] for number in range(len(prompts))]

    @abstractmethod
    def draw(self, draw: random.Random, number: int) -> PlacedMedia:
        """What an encoder reads, of a number below DIFFERENT."""

    def arguments(self, media: Sequence[PlacedMedia], length: int, prompt: int) -> dict[str, Tensor]:
        """As transformers' model takes it."""
        (one,) = media
        return {name: torch.from_numpy(value) for name, value in one.inputs.items()}


@dataclass(frozen=True)
class Sounds(EncoderInputs):
    """Spectrograms, which the encoder takes as input_features [1, bins, frames]."""

    bins: int
    frames: int
    # Positions of the encoder.
    length: int

    def draw(self, draw: random.Random, number: int) -> PlacedMedia:
        inputs = {"input_features": pixels(draw, 1, self.bins, self.frames)}
        return PlacedMedia("audio", digest_of(inputs), int32(()), inputs, self.length)


@dataclass(frozen=True)
class Waves(EncoderInputs):
    """Sounds of unlike lengths as they are, which the encoder takes as input_values [1, samples]. multiple: sounds are
    filled to one of it, and a mask says so."""

    encoder: SoundEncoder
    lengths: Sequence[int] = (1200, 9001, 4000, 20123)

    def draw(self, draw: random.Random, number: int) -> PlacedMedia:
        length = self.lengths[number]
        filled = -(-length // self.encoder.multiple) * self.encoder.multiple
        inputs = {"input_values": np.pad(pixels(draw, 1, length), ((0, 0), (0, filled - length)))}
        if self.encoder.multiple > 1:
            inputs["attention_mask"] = np.arange(filled)[None] < length
        return PlacedMedia("audio", digest_of(inputs), int32(()), inputs, self.encoder.positions(filled))


@dataclass(frozen=True)
class Spectra(EncoderInputs):
    """Spectrograms of unlike lengths, which the encoder takes as input_features [1, frames, bins]."""

    # From samples, of which the first step makes frames.
    encoder: SoundEncoder
    bins: int
    lengths: Sequence[int] = (9, 61, 32, 100)

    def draw(self, draw: random.Random, number: int) -> PlacedMedia:
        frames = self.lengths[number]
        inputs = {"input_features": pixels(draw, 1, frames, self.bins)}
        positions = self.encoder.positions(self.encoder.steps[0].least(frames))
        return PlacedMedia("audio", digest_of(inputs), int32(()), inputs, positions)


@dataclass(frozen=True)
class Texts(EncoderInputs):
    """Texts of unlike lengths."""

    # Their tokens are below it.
    vocab: int
    lengths: Sequence[int] = (1, 37, 12, 90)

    def draw(self, draw: random.Random, number: int) -> PlacedMedia:
        ids = [draw.randrange(self.vocab) for _ in range(self.lengths[number])]
        return source_text(np.array(ids, np.int32))
