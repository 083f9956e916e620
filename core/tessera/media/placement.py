"""Where the images and sounds of a prompt lie in its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.modalities import NOUNS
from tessera.config.tiled_encoder import TiledEncoder
from tessera.errors import RequestError
from tessera.media.item import MediaPlaces, MediaReady, ProcessedMedia
from tessera.media.placed import PlacedMedia

TILES_SHOWN = "aspect_ratio_mask"
"""The name of what says which tiles of an image show something, the first ones, among its inputs."""


def replacements_of(media: Sequence[ProcessedMedia], ready: MediaReady) -> dict[str, list[str]]:
    """By modality, in order, what takes the place of their placeholders."""
    texts: dict[str, list[str]] = {}
    for one in media:
        own = texts.setdefault(one.modality, [])
        own.append(ready.places[one.modality].with_number(one.replacement, len(own)))
    return texts


def placed(ids: Sequence[int] | Array, media: Sequence[ProcessedMedia], ready: MediaReady) -> tuple[PlacedMedia, ...]:
    """The images and sounds of a prompt whose text has their replacements, in the order of their places. media: those
    of each modality in order. ids: of the prompt's tokens. Raises RequestError if the prompt has other tokens for media
    than those."""
    array = np.asarray(ids)
    named = [name for name in ready.places if not _are_anothers(name, media, ready)]
    done = [one for name in named for one in _of_one(name, array, media, ready.places[name])]
    return tuple(sorted(done, key=lambda item: item.start))


def _are_anothers(modality: str, media: Sequence[ProcessedMedia], ready: MediaReady) -> bool:
    """Whether the tokens of a modality stand for media of another one, which has the same. Raises RequestError if they
    may stand for both."""
    ids, known = {*ready.places[modality].feature_ids}, {one.modality for one in media}
    others = [name for name in known - {modality} if ids.intersection(ready.places[name].feature_ids)]
    if others and modality in known:
        nouns = " and ".join(sorted(f"{NOUNS[name]}s" for name in (modality, *others)))
        raise RequestError(
            f"This model has the same tokens for {nouns}, so a prompt holds either; send one kind.", param="prompt"
        )
    return bool(others)


def _of_one(modality: str, ids: Array, media: Sequence[ProcessedMedia], layout: MediaPlaces) -> list[PlacedMedia]:
    """Those of a modality."""
    own = [one for one in media if one.modality == modality]
    places = int32(np.flatnonzero(np.isin(ids, layout.feature_ids)))
    counts = [one.num_rows for one in own]
    if len(places) != sum(counts) or 0 in counts:
        nouns = f"{NOUNS[modality]}s"
        raise RequestError(
            f"The prompt has {len(places)} tokens for {nouns}, and its {nouns} need {sum(counts)}; remove the tokens "
            f"for {nouns} from its text.",
            param="prompt",
        )
    parts = np.split(places, np.cumsum(counts)[:-1]) if counts else []
    if layout.tiled is not None:
        return [
            tiled_image(one.digest, int(part[0]), one.inputs, layout.tiled)
            for one, part in zip(own, parts, strict=True)
        ]
    return [PlacedMedia(one.modality, one.digest, part, one.inputs) for one, part in zip(own, parts, strict=True)]


def tiled_image(digest: bytes, place: int, inputs: dict[str, Array], tiled: TiledEncoder) -> PlacedMedia:
    """An image that tokens see through cross attention. place: of its token. inputs: ProcessedMedia.inputs"""
    shown = int(np.count_nonzero(inputs[TILES_SHOWN])) * tiled.positions
    return PlacedMedia("image", digest, int32([place]), inputs, tiled.length, shown)
