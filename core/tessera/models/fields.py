"""Reads and checks the fields of config.json, and defines the error for an unsupported model type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.errors import ModelError


class RefusedTypeError(ModelError):
    """A model type that is not supported. The message is the reason alone, without the architecture's name."""


Checkpoint = Mapping[str, Any]

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Checkpoints' names of activations to those of the ops."""
_UNGATED = {**ACTIVATIONS, "quick_gelu": "gelu_quick", "relu": "relu"}


_SMALLEST = 1e-9
"""Of multipliers; the largest is its inverse."""


def renamed(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """With the fields that have names of their own under the common ones too. names: own to common."""
    return {**checkpoint, **{common: checkpoint[own] for own, common in names.items() if own in checkpoint}}


class ConfigFields:
    """config.json on top of the family's defaults for omitted fields; null stays null. An invalid value raises
    ModelError."""

    def __init__(self, checkpoint: Checkpoint, defaults: Checkpoint | None = None) -> None:
        self.values: Checkpoint = {**(defaults or {}), **checkpoint}

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of at least `least`. default: used if the field is omitted or null."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError(f"{name} {_fault(value)} in config.json.")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number. default: used if the field is omitted or null."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{name} {_fault(value)} in config.json.")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0. default: used if the field is omitted or null."""
        value = self.number(name, default)
        if value <= 0:
            raise ModelError(f"{name} {_fault(value)} in config.json.")
        return value

    def multiplier(self, name: str, default: float | None = None) -> float:
        """A number above 0 with which products and squares stay finite. default: used if the field is omitted or
        null."""
        value = self.positive(name, default)
        if not _SMALLEST <= value <= 1 / _SMALLEST:
            raise ModelError(f"{name} {_fault(value)} in config.json.")
        return value

    def positive_or_none(self, name: str) -> float | None:
        """A number above 0, or None for null."""
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{name} must be true or false in config.json.")
        return value

    def table(self, name: str) -> ConfigFields:
        """A nested object; empty if there is none."""
        value = self.get(name) or {}
        if not isinstance(value, Mapping):
            raise ModelError(f"{name} in config.json is not an object.")
        return ConfigFields(value)

    def by_layer(self, name: str, number: int, holds: Callable[[Any], bool], what: str) -> Sequence[Any] | None:
        """A list with at least one entry per layer; None if omitted. what: the valid entries, for the error."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < number or not all(holds(entry) for entry in value):
            raise ModelError(f"{name} in config.json must say {what} for each of {number} layers.")
        return value[:number]

    def numbers(self, name: str) -> Sequence[int]:
        """A list of integers; empty if omitted."""
        value = self.get(name) or []
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise ModelError(f"{name} in config.json is not a list of whole numbers.")
        return value

    def activation(self, name: str, default: str, *, gated: bool = True) -> str:
        """The activation, by the ops' name for it. gated: whether it is a gate's."""
        value, known = self.get(name), ACTIVATIONS if gated else _UNGATED
        named = default if value is None else str(value)
        if named not in known:
            raise ModelError(f"activation '{named[:40]}' is not supported; supported are {', '.join(known)}.")
        return known[named]


def _fault(value: object) -> str:
    return "is missing" if value is None else "has an invalid value"
