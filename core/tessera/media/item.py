"""What a model is given of an image, a video or a sound, as plain data that crosses processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.config.tiled_encoder import TiledEncoder

MAX_INPUT_BYTES = 3 * 2**28
"""The most that towers take of one image, video or sound, of those of a request and of those that a step encodes: each
crosses processes in one message, which may have 1 GiB."""


class ProcessedMedia(msgspec.Struct, frozen=True, array_like=True):
    """One image, video or sound, processed by itself."""

    # "image", "video" or "audio"
    modality: str
    # SHA-256 over the names, dtypes, shapes and bytes of `inputs`: what caches know it by. 32 bytes
    digest: bytes
    # The text that takes the place of one placeholder in the prompt.
    replacement: str
    # How many tokens of `replacement` get a feature of the tower; or, of what an encoder reads, how many positions it
    # makes of it, 0 where it always makes as many.
    num_rows: int
    # What the model's tower takes, by name, as for this one alone: pixel_values [1, 3, H, W] float32, or for example
    # pixel_values [patches, values of a patch] with image_grid_thw [1, 3], or input_features [1, bins, frames].
    inputs: dict[str, Array]


def input_bytes(inputs: Mapping[str, Array]) -> int:
    """The bytes of what a tower takes."""
    return sum(array.nbytes for array in inputs.values())


class MediaPlaces(msgspec.Struct, frozen=True, array_like=True):
    """How a model's prompts hold the media of one modality."""

    # What the text of a prompt has once for each.
    placeholder: str
    # The tokens that get a feature of the tower.
    feature_ids: tuple[int, ...]
    # Samples a second of the sounds that the processor takes; 0 for images.
    rate: int = 0
    # What stands around the number of an image of a prompt, ahead of its text; None where images have none.
    number: tuple[str, str] | None = None
    # What tokens see of an image through cross attention, where they do; then one token is put in its place.
    tiled: TiledEncoder | None = None

    def with_number(self, replacement: str, number: int) -> str:
        """What takes the place of the placeholder with this number, from 0 on. replacement:
        ProcessedMedia.replacement"""
        if self.number is None:
            return replacement
        before, behind = self.number
        return f"{before}{number}{behind}{replacement}"


class MediaReady(msgspec.Struct, frozen=True, tag="ready"):
    """The worker's first answer."""

    # By modality.
    places: dict[str, MediaPlaces]

    @property
    def placeholders(self) -> dict[str, str]:
        """By modality."""
        return {modality: places.placeholder for modality, places in self.places.items()}


class Waveform(msgspec.Struct, frozen=True, tag="waveform"):
    """A sound as one channel."""

    # [samples] float32
    samples: Array
    # Samples a second.
    rate: int


def digest_of(inputs: Mapping[str, Array]) -> bytes:
    """See ProcessedMedia.digest."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        array = np.ascontiguousarray(inputs[name])
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
