"""What transcribing needs of a model that is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.arrays import Array
from tessera.config.speech import SpeechConfig
from tessera.media.placed import PlacedMedia


@dataclass(frozen=True)
class Written:
    """An answer."""

    # Without the one that ends it.
    tokens: Sequence[int]
    # Natural, of all of them and the one that ends it.
    logprob: float
    # How many those are.
    num_drawn: int


@dataclass(frozen=True)
class Heard:
    """What one token says of a window."""

    # The language's code; "" if it was not asked for.
    language: str
    # The probability that nobody speaks.
    no_speech: float


class SpeechModel(Protocol):
    """Methods raise TesseraError."""

    @property
    def speech(self) -> SpeechConfig: ...

    @property
    def max_model_len(self) -> int:
        """Of prompt and answer together."""
        ...

    async def encode(self, samples: Array) -> PlacedMedia:
        """What the model takes of a window's samples: [samples] float32, at SAMPLE_RATE."""
        ...

    async def detect(self, sound: PlacedMedia, *, language: bool) -> Heard:
        """language: whether it is asked for."""
        ...

    async def write(
        self, prompt: Sequence[int], sound: PlacedMedia, *, temperature: float, max_tokens: int, timed: bool
    ) -> Written:
        """An answer to a prompt. timed: whether it has times."""
        ...

    async def align(self, tokens: Sequence[int], sound: PlacedMedia) -> Array:
        """[tokens, heads, positions] float32: how much each token attends to each position of the encoder."""
        ...

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens of text."""
        ...


SAMPLE_RATE = 16_000
"""Hz."""
