"""Images and videos of random pixels, or random sounds, for tiny models that read some: a prompt with none, one or
three, at its start, in the middle and at its end, some of them the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, int32
from tessera.config.tiled_encoder import TiledEncoder
from tessera.media.item import digest_of
from tessera.media.placed import PlacedMedia
from tessera.media.placement import tiled_image

DIFFERENT = 4
COUNTS = (1, 3, 0, 2, 1, 3)
TEXT = (7, 0, 3, 12, 5, 1)
_KINDS = {"image": 1, "video": 2}


@dataclass(frozen=True)
class Image:
    """What a processor makes of an image, a video or a sound, alone."""

    # Of its tokens, which of them stand for features.
    tokens: Sequence[int]
    inputs: dict[str, Array]
    # Its modality and the token that stands for its features, if not those of Images.
    modality: str = ""
    token: int = -1
    # What tokens see of it through cross attention, if they do.
    tiled: TiledEncoder | None = None


def in_a_row(arrays: Sequence[Array]) -> Array:
    """Along the first dimension. Arrays of unlike sizes get zeros behind them in the others, as processors pad the
    images of a prompt."""
    sizes = np.max([array.shape[1:] for array in arrays], axis=0)
    joined = [
        np.pad(array, [(0, 0), *((0, n - m) for n, m in zip(sizes, array.shape[1:], strict=True))]) for array in arrays
    ]
    return np.concatenate(joined)


def side_by_side(arrays: Sequence[Array]) -> Array:
    """Along the second dimension: the parts of all images of the one prompt of a batch."""
    return np.concatenate(arrays, axis=1)


@dataclass(frozen=True)
class Images:
    """Of one family."""

    # The token that stands for a feature.
    token: int
    # The image of a number below DIFFERENT; those of unlike numbers may have unlike sizes.
    make: Callable[[random.Random, int], Image]
    # By the name of an input, what a processor makes of those of several images of a prompt, if not in_a_row().
    joins: Mapping[str, Callable[[Sequence[Array]], Array]] = field(default_factory=dict)
    # The name of an argument that has 1 for each such token of an image, 2 of a video, and 0 for others; "" for none.
    kinds: str = ""
    # Whether that argument has 0 for the tokens of a prompt, and 1 for those of an answer, instead.
    prefix: bool = False
    # Further tokens that stand for features, of other modalities.
    others: tuple[int, ...] = ()
    # Further tokens that stand for features of the same image.
    marks: Sequence[int] = ()
    # Inputs that transformers' model does not take, which knows from the tokens what they say.
    processor_inputs: frozenset[str] = frozenset()
    # The fewest images of a prompt.
    least: int = 0
    # What it makes of an image that is one of so many of a prompt, of what it makes of it alone.
    among: Callable[[Image, int], Image] = lambda image, count: image
    # PlacedMedia.modality
    modality: str = "image"
    # How many tokens text does not have: the last ones of the vocabulary.
    reserved: int = 1
    # Tokens of text around images, in turn.
    texts: Sequence[int] = TEXT
    # Further arguments of transformers' model for a text with these images: of what arguments() takes.
    extra_arguments: Callable[[Sequence[PlacedMedia], int, int], Mapping[str, Array]] = lambda media, length, prompt: {}

    def contents(self, draw: random.Random) -> Sequence[tuple[Images, Image]]:
        """All that prompts may hold, each with the kind that it is of."""
        return [(self, self.make(draw, number)) for number in range(DIFFERENT)]

    def prompts(self, vocab: int, count: int) -> tuple[list[tuple[int, ...]], list[list[PlacedMedia]]]:
        """vocab: the tokens that stand for features are the last ones of it."""
        draw = random.Random(0)
        known = self.contents(draw)
        prompts, media = [], []
        for number in range(count):
            ids: list[int] = []
            placed: list[PlacedMedia] = []
            images = max(self.least, COUNTS[number % len(COUNTS)])
            for part in range(images):
                ids += self._text(draw, vocab, self.texts[(number + part) % len(self.texts)])
                kind, image = known[(number // 2 + part) % len(known)]
                image = kind.among(image, images)
                own = (kind.token, *kind.marks) if image.token < 0 else (image.token,)
                modality = image.modality or kind.modality
                features = [len(ids) + at for at, token in enumerate(image.tokens) if token in own]
                ids += image.tokens
                digest = digest_of(image.inputs)
                if image.tiled is None:
                    placed.append(PlacedMedia(modality, digest, int32(features), image.inputs))
                else:
                    placed.append(tiled_image(digest, features[0], image.inputs, image.tiled))
            ids += self._text(draw, vocab, self.texts[(number * 2 + 1) % len(self.texts)] if placed else 5)
            prompts.append(tuple(ids))
            media.append(placed)
        return prompts, media

    def _text(self, draw: random.Random, vocab: int, length: int) -> list[int]:
        standing = {*self.others, *self.marks}
        known = [token for token in range(vocab - self.reserved) if token not in standing]
        return [known[draw.randrange(len(known))] for _ in range(length)]

    def arguments(self, media: Sequence[PlacedMedia], length: int, prompt: int) -> dict[str, Tensor]:
        """As transformers' model takes the images of a text. length, prompt: in tokens, of the text and of the prompt
        with which it begins."""
        names = dict.fromkeys(name for one in media for name in one.inputs if name not in self.processor_inputs)
        parts = {name: [one.inputs[name] for one in media if name in one.inputs] for name in names}
        joined = {name: self.joins.get(name, in_a_row)(arrays) for name, arrays in parts.items()}
        if self.kinds:
            kinds = joined[self.kinds] = np.zeros((1, length), np.int32)
            if self.prefix:
                kinds[0, prompt:] = 1
            for one in () if self.prefix else media:
                kinds[0, one.places] = _KINDS[one.modality]
        joined |= self.extra_arguments(media, length, prompt) if media else {}
        return {name: torch.from_numpy(value) for name, value in joined.items()}


def pixels(draw: random.Random, *shape: int) -> Array:
    """Random float32 numbers."""
    return np.random.default_rng(draw.randrange(2**32)).standard_normal(shape).astype(np.float32)
