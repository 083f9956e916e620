"""The definition, the fallback and the oracle of every op, in plain torch."""

from __future__ import annotations

from tessera.reference.opset import REFERENCE

__all__ = ["REFERENCE"]
