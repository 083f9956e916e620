"""The implementations chosen for a model, and how messages and tables name places in a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Explained:
    """The implementation of one part of a model. what: attention, the name of an op, or what may be quantized. place:
    where in the model. others: the alternatives, and why each was not chosen."""

    what: str
    place: str
    chosen: str
    others: tuple[tuple[str, str], ...] = ()


def op_place(spec: Any) -> str:
    """The constants of an op's spec that differ from their defaults, such as "n=896, dtype=bfloat16". Fields that
    follow from others (hash=False) are left out."""
    if not _has_fields(spec):
        return "" if spec is None else str(spec)
    shown = []
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if value != field.default and field.hash is not False:
            shown.append(f"{field.name}=({op_place(value)})" if _has_fields(value) else f"{field.name}={value}")
    return ", ".join(shown)


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
