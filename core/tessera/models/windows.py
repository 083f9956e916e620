"""Which layers see only the last tokens: one entry a layer, None for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.models.fields import Fields

SLIDING, FULL = "sliding_attention", "full_attention"

Windows = Sequence[int | None]


def everywhere(fields: Fields) -> Windows:
    """sliding_window on all layers, where there is one."""
    return (sliding_window(fields),) * fields.count("num_hidden_layers")


def by_kind(fields: Fields, kinds: Sequence[str]) -> Windows:
    """sliding_window where the kind is SLIDING."""
    window = sliding_window(fields)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def layer_kinds(fields: Fields, default: Sequence[str]) -> Sequence[str]:
    """layer_types, or what the family takes for them. Raises ModelError."""
    number = fields.count("num_hidden_layers")
    said = fields.by_layer("layer_types", number, lambda kind: kind in (SLIDING, FULL), f"{SLIDING} or {FULL}")
    return default if said is None else said


def sliding_window(fields: Fields) -> int | None:
    return None if fields.get("sliding_window") is None else fields.count("sliding_window")
