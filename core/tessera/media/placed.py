"""One image or sound at its place in a prompt: what an engine takes of it."""

from __future__ import annotations

import msgspec

from tessera.arrays import Array


class PlacedMedia(msgspec.Struct, frozen=True, array_like=True):
    """An image or a sound of a prompt. The prompt's token at each of its places stands for a feature that the model's
    tower makes of it."""

    # "image" or "audio"
    modality: str
    # ProcessedMedia.digest: where it is the same, the features are.
    digest: bytes
    # [features] int32: ascending positions in the prompt.
    places: Array
    # What the tower takes, by the names that transformers' code has for it.
    inputs: dict[str, Array]

    @property
    def start(self) -> int:
        """The first of its places."""
        return int(self.places[0])

    @property
    def end(self) -> int:
        """The position after the last of its places."""
        return int(self.places[-1]) + 1
