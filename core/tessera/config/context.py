"""How many tokens a model was made for, and how many the scaling of its rotary embedding allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len")
# What transformers takes where published configurations leave it out.
_LEFT_OUT: Mapping[str, int] = {"falcon": 2048}


def context_field(config: Mapping[str, Any]) -> str | None:
    """The field that says how many tokens a model was made for; None where none does."""
    return next((name for name in _NAMES if config.get(name) is not None), None)


def left_out(config: Mapping[str, Any]) -> int | None:
    """What is taken where no field says it."""
    return _LEFT_OUT.get(str(config.get("model_type")))


def scaled(config: Mapping[str, Any], positions: int) -> tuple[int, int]:
    """Tokens a request may have unless the user says otherwise, and at most. yarn reaches as far as its factor says;
    dynamic can, at the price of another rotary embedding for shorter texts, so only if it is asked to. What cannot be
    right is left to whoever builds the model to refuse."""
    said = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(said, Mapping):
        return positions, positions
    kind, factor = said.get("rope_type") or said.get("type"), said.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return positions, positions
    if kind == "dynamic":
        return positions, int(positions * factor)
    original = said.get("original_max_position_embeddings")
    if kind == "yarn" and type(original) is int and 0 < original < 2**31:
        reach = max(positions, int(original * factor))
        return reach, reach
    return positions, positions
