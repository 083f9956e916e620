"""Which layers of a file's model see a window only."""

from __future__ import annotations

from tessera.gguf.architectures.architecture import Settings
from tessera.gguf.fields import GgufFields


def sliding_layers(fields: GgufFields, every: int) -> Settings:
    """every: the last layer of so many sees everything, where the file does not say which do."""
    said = fields.per_layer("attention.sliding_window_pattern")
    slides = [bool((layer + 1) % every) for layer in range(fields.num_layers)] if said is None else said
    return {
        "sliding_window": fields.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if one else "full_attention" for one in slides],
    }
