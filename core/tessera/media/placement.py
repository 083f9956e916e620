"""Where the images of a prompt lie in its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.errors import RequestError
from tessera.media.item import MediaReady, ProcessedMedia
from tessera.media.placed import PlacedMedia


def placed(ids: Sequence[int] | Array, media: Sequence[ProcessedMedia], ready: MediaReady) -> tuple[PlacedMedia, ...]:
    """The images of a prompt whose text has their replacements, in order. ids: of its tokens. Raises RequestError if
    the prompt has other tokens for images than those."""
    places = int32(np.flatnonzero(np.isin(np.asarray(ids), ready.feature_ids)))
    counts = [one.num_rows for one in media]
    if len(places) != sum(counts) or 0 in counts:
        raise RequestError(
            f"The prompt has {len(places)} tokens for images, and its images need {sum(counts)}; remove the tokens for "
            "images from its text.",
            param="prompt",
        )
    parts = np.split(places, np.cumsum(counts)[:-1]) if counts else []
    return tuple(PlacedMedia(one.modality, one.digest, own, one.inputs) for one, own in zip(media, parts, strict=True))
