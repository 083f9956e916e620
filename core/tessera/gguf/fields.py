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

    def count_if_any(self, name: str) -> int:
        """As count(), of what a model may be without: 0 then."""
        return self.count(name) if self.get(name) else 0

    def largest(self, name: str, default: int | None = None) -> int:
        """As count(), of what may differ from layer to layer, where it may be 0: the largest."""
        value = self.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            numbers = {*map(str, value)} - {"0"}
            if len(numbers) == 1 and all(type(number) is int and 0 <= number < 2**31 for number in value):
                return int(max(value))
        return self.count(name, default)

    @property
    def num_layers(self) -> int:
        """Those of the model, without those that predict further tokens."""
        further = self.get("nextn_predict_layers")
        return self.count("block_count") - (further if type(further) is int and further > 0 else 0)

    @property
    def epsilon(self) -> float:
        """Of norms of either kind."""
        rms = self.get("attention.layer_norm_rms_epsilon") is not None
        return self.number(f"attention.layer_norm_{'rms_' if rms else ''}epsilon")

    def per_layer(self, name: str) -> Sequence[Any] | None:
        """What is said of each layer; None if there is no list of that length."""
        value = self.get(name)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return value[: self.num_layers] if is_list and len(value) >= self.num_layers else None

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
