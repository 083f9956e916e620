"""One image, or the like, at its place in a prompt: what an engine takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec
import numpy as np

from tessera.arrays import Array


class PlacedMedia(msgspec.Struct, frozen=True, array_like=True):
    """An image of a prompt. The prompt's token at each of its places stands for a feature that the model's tower makes
    of it."""

    # "image"
    modality: str
    # digest_of(inputs): where it is the same, the features are.
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


def digest_of(inputs: Mapping[str, Array]) -> bytes:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = sha256()
    for name, value in sorted(inputs.items()):
        head = f"{name} {value.dtype} {value.shape}".encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(np.ascontiguousarray(value).data)
    return digest.digest()
