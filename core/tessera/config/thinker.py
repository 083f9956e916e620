"""Models that think in text and speak it: their thinker, which is served alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError

_PART = "thinker_config"
_THINKERS: Mapping[str, str] = MappingProxyType(
    {
        "Qwen2_5OmniForConditionalGeneration": "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2_5OmniModel": "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration": "Qwen3OmniMoeThinkerForConditionalGeneration",
    }
)
"""Architectures of the whole to those of the thinker."""
_COMMON_FIELDS = ("quantization_config", "dtype", "torch_dtype")
"""Fields of the whole that are the thinker's too."""


def thinker_alone(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as that of the thinker alone; of other models, as it is. Raises ModelError."""
    named = _THINKERS.get(config["architectures"][0])
    if named is None:
        return config
    thinker = config.get(_PART)
    if not isinstance(thinker, Mapping):
        raise ModelError(f"{_PART} in config.json is not an object.")
    return {**{name: config[name] for name in _COMMON_FIELDS if name in config}, **thinker, "architectures": [named]}
