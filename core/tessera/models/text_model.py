"""The text model of a checkpoint that has others beside it, for images or sound: its fields of config.json."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.models.fields import Checkpoint

NESTED = "text_config"
_OTHER = "vision_config"
NOTE = "the text model alone is served: images, video and sound are refused"


def text_fields(build: Build, checkpoint: Checkpoint) -> Checkpoint:
    """config.json as that of the text model alone, and a note that only this is served. Fields that the text model
    lacks are the whole's, and so is tie_word_embeddings where both have it, as in transformers. Raises ModelError."""
    nested = checkpoint.get(NESTED, {})
    if not isinstance(nested, Mapping):
        raise ModelError(f"{NESTED} in config.json is not an object.")
    if (nested or _OTHER in checkpoint) and not build.modalities:
        build.notes.append(NOTE)
    kept = {name: checkpoint[name] for name in ("architectures", "tie_word_embeddings") if name in checkpoint}
    return {**checkpoint, **nested, **kept}
