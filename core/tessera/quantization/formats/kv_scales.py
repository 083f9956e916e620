"""The scales of keys and values that a checkpoint has for an attention layer."""

from __future__ import annotations

import math

from tessera.errors import ModelError
from tessera.platform.device import Tensor
from tessera.platform.quantization import Part, Unpacking


def kv_scale(name: str, *also: str) -> Part:
    """A scale [1] in float32. also: other names that it has. Reading it raises ModelError unless it is positive."""

    def checked(scale: Tensor) -> Tensor:
        if not scale.is_meta and not 0 < scale.item() < math.inf:
            raise ModelError(f"'{name}' is {scale.item():g} where a positive number is needed; use another copy.")
        return scale

    return Part(name, (1,), None, None, 1.0, also, "float32", Unpacking(checked, 1))
