"""A text that an encoder reads, as it goes to the engine: beside the prompt, which its decoder begins with."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array, int32
from tessera.media.item import digest_of
from tessera.media.placed import PlacedMedia

TEXT = "text"
"""PlacedMedia.modality"""


def source_text(ids: Array) -> PlacedMedia:
    """ids [tokens] int32, at least one."""
    inputs: dict[str, Array] = {"input_ids": ids.astype(np.int64)[None]}
    return PlacedMedia(TEXT, digest_of(inputs), int32(), inputs, len(ids))
