"""What is said of a model on its devices, whether it runs or is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.platform.explain import Explained

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.platform.loaded_model import LoadedModel
    from tessera.platform.platform import Platform


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model on its devices. Bytes are per device."""

    platform: str
    # The device's name, shown to users.
    device: str
    dtype: str
    weight_bytes: int
    # How many numbers of the checkpoint weight_bytes stores; 0 if unknown.
    num_weights: int = 0
    cache_bytes: int
    # Tokens that fit in the KV cache together.
    num_cache_tokens: int
    max_model_len: int
    # Of all workers together.
    num_devices: int = 1
    # Ops that run their reference, because the platform has no kernel for them.
    fallback_ops: list[str] = []
    # Choices made while building the model, and configuration values filled in by the platform, one line each.
    notes: list[str] = []
    # Which backend or kernel runs each part of the model, and why.
    choices: list[Explained] = []


def summary_fields(
    config: EngineConfig, loaded: LoadedModel, platform: Platform, notes: Sequence[str]
) -> dict[str, Any]:
    """The fields of a ModelSummary, apart from those of its KV cache. config: with the platform's defaults."""
    return {
        "platform": platform.name,
        "device": loaded.device or platform.name,
        "dtype": loaded.facts.dtype,
        "weight_bytes": loaded.weight_bytes,
        "num_weights": loaded.num_weights,
        "max_model_len": config.model.max_model_len,
        "num_devices": sum(len(spec.devices) for spec in platform.placement(config.parallel)),
        "fallback_ops": list(loaded.fallbacks),
        "notes": list(notes),
        "choices": list(loaded.choices),
    }
