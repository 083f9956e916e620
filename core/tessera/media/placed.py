"""One image, video or sound at its place in a prompt, or one sound beside it: what an engine takes of it."""

from __future__ import annotations

import msgspec

from tessera.arrays import Array


class PlacedMedia(msgspec.Struct, frozen=True, array_like=True):
    """An image, a video or a sound of a prompt: the prompt's token at each of its places stands for a feature that the
    model's tower makes of it. Or what tokens see through cross attention: the encoder of an encoder-decoder reads it,
    no token stands for it, and all see it; or an image has a token, and those behind it see it."""

    # "image", "video" or "audio"
    modality: str
    # ProcessedMedia.digest: where it is the same, the features are.
    digest: bytes
    # [features] int32: ascending positions in the prompt; none of what an encoder reads, that of the token of an image
    # that is seen through cross attention.
    places: Array
    # What the tower takes, by the names that transformers' code has for it.
    inputs: dict[str, Array]
    # How many positions tokens see of it through cross attention; 0 where tokens stand for its features.
    length: int = 0
    # The first of these that show something, where the last ones may fill an image up.
    num_shown: int = 0

    @property
    def size(self) -> int:
        """How many features it has."""
        return self.length or int(self.places.size)

    @property
    def start(self) -> int:
        """The first position that needs it: the first of its places; 0 of what is seen through cross attention."""
        return 0 if self.length else int(self.places[0])

    @property
    def token(self) -> int:
        """The place of the token that stands for all of it."""
        return int(self.places[0])

    @property
    def end(self) -> int:
        """The position after the last one that needs it. What is seen through cross attention is needed when a row
        begins."""
        return 1 if self.length else int(self.places[-1]) + 1
