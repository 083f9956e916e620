"""Plans whose tensors stay where they are, so that a captured launch finds each new plan in the place of the last."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from tessera.platform.launch import Buffers


def persistent(plan: Any, name: str, buffers: Buffers | None) -> Any:
    """The plan, a dataclass of tensors, with each tensor copied into a buffer of its own; as it is without buffers."""
    if buffers is None:
        return plan
    kept: dict[str, Any] = {}
    for field in fields(plan):
        value, place = getattr(plan, field.name), f"{name}_{field.name}"
        if is_dataclass(value):
            kept[field.name] = persistent(value, place, buffers)
        elif isinstance(value, Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            kept[field.name] = buffers.get(place, value.shape, dtype).copy_(value)
    return replace(plan, **kept)
