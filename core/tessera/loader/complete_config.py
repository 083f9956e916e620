"""config.json with what it does not say, so that two of them can be compared field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tessera.errors import ModelError, printable


def complete_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what transformers takes for what it does not say. Raises ModelError for settings that
    transformers does not take."""
    from transformers import CONFIG_MAPPING

    try:
        known: dict[str, Any] = CONFIG_MAPPING[str(config["model_type"])].from_dict(dict(config)).to_dict()
    except Exception as error:  # validators of transformers raise errors of many types
        raise ModelError(f"config.json is not one that transformers takes: {printable(str(error), 200)}") from error
    return {**known, "head_dim": _head_width(known), "rope_parameters": _complete_rope(known)}


def _complete_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its parameters, with those that are said elsewhere or follow from others, and without those that say nothing."""
    rope = {name: value for name, value in config["rope_parameters"].items() if value is not None}
    if rope.get("partial_rotary_factor") == 1.0:
        del rope["partial_rotary_factor"]
    if rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        rope = {"attention_factor": attention, **rope, "original_max_position_embeddings": original}
    return rope


def _head_width(config: Mapping[str, Any]) -> int:
    width: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return width
