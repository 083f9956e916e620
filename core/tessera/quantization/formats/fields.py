"""Reading quantization_config, whose author is not trusted: each wrong value is one line that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.errors import ModelError, printable

MAX_BLOCK = 1 << 20


class Fields:
    """An object in config.json. where: its path there."""

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ModelError(f"{where} in config.json is not an object.")
        self.where, self.values = where, values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def table(self, name: str) -> Fields:
        return Fields(f"{self.where}.{printable(name, 60)}", self.values.get(name))

    def one_of(self, name: str, supported: Sequence[Any], default: Any = None) -> Any:
        value = self.get(name, default)
        if not any(value is one or (type(value) is type(one) and value == one) for one in supported):
            raise self.unsupported(name, f"it can be {', '.join(json.dumps(one) for one in supported)}", value)
        return value

    def strings(self, name: str) -> list[str]:
        """A list of strings, empty if there is none."""
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ModelError(f"{self.where}.{name} in config.json is not a list of strings.")
        return value

    def block(self, name: str) -> tuple[int, int]:
        """The outputs and inputs that share a scale, 1 to MAX_BLOCK each."""
        value = self.get(name)
        sizes = value if isinstance(value, list) and len(value) == 2 else ()
        if not all(type(size) is int and 1 <= size <= MAX_BLOCK for size in sizes) or not sizes:
            why = f"it can be two numbers, of outputs and inputs, from 1 to {MAX_BLOCK:,}"
            raise self.unsupported(name, why, value)
        return sizes[0], sizes[1]

    def refuse(self, *names: str) -> None:
        for name in names:
            if self.get(name):
                raise ModelError(f"{self.where}.{name} in config.json is not supported; use a model without it.")

    def unsupported(self, name: str, why: str, value: Any) -> ModelError:
        text = printable(json.dumps(value), 60)
        return ModelError(f"{self.where}.{name} in config.json is {text}, which is not supported; {why}.")
