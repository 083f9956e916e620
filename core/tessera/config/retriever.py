"""Models of late interaction, which read pages as images: the configuration of the model that makes a vector of each
token is a part of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError

_PART = "vlm_config"
_WIDTH = "embedding_dim"
_USUAL_WIDTH = 128
"""transformers' default."""
RETRIEVERS: Mapping[str, str] = MappingProxyType(
    {
        "ColModernVBertForRetrieval": "modernvbert",
        "ColPaliForRetrieval": "paligemma",
        "ColQwen2ForRetrieval": "qwen2_vl",
    }
)
"""Architectures to the model_type of the model within, where config.json does not say it."""
_COMMON_FIELDS = ("quantization_config", "dtype", "torch_dtype")
"""Fields of the whole that are those of the model within too."""


def retriever_alone(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as that of the model within, with the retriever's architecture and the width of its vectors; of other
    models, as it is. Raises ModelError."""
    architecture = config["architectures"][0]
    if architecture not in RETRIEVERS:
        return config
    inner = config.get(_PART)
    if not isinstance(inner, Mapping):
        raise ModelError(f"{_PART} in config.json is not an object.")
    own = {"architectures": [architecture], _WIDTH: config.get(_WIDTH, _USUAL_WIDTH)}
    common = {name: config[name] for name in _COMMON_FIELDS if name in config}
    return {"model_type": RETRIEVERS[architecture], **common, **inner, **own}
