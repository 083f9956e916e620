"""Reads the settings of a GGUF file, whose author is not trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.errors import ModelError

_MAX_NAME_CHARS = 60


class GgufFields:
    """The settings under the prefix of the file's architecture. Raises ModelError for one that is missing or of another
    type."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.architecture = self._text("general.architecture")

    def _text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str) or not value:
            raise ModelError(f"the GGUF file does not say what its model is: {key} {fault(value)}.")
        return value

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def get(self, name: str) -> Any:
        return self.metadata.get(self.key(name))

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number. Some files have one for each layer: then all must be equal."""
        value = self.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str) and value and len({*map(str, value)}) == 1:
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise ModelError(f"{self.key(name)[:_MAX_NAME_CHARS]} of the GGUF file {fault(value)}.")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.key(name)[:_MAX_NAME_CHARS]} of the GGUF file {fault(value)}.")
        return float(value)

    def token(self, name: str) -> int | None:
        """The id of a special token: "bos" for tokenizer.ggml.bos_token_id."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.metadata.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
            raise ModelError(f"{key} of the GGUF file {fault(value)}.")
        return value


def fault(value: object) -> str:
    """What is wrong with a value, for a message that names it."""
    if value is None:
        return "is missing"
    if isinstance(value, Sequence) and not isinstance(value, str) and len({*map(str, value)}) > 1:
        return "differs from layer to layer, which is not supported"
    return "has an invalid value"
