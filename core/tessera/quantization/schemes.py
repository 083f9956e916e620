"""The schemes that weights are quantised into, by the names that --quantization takes. In both, activations are int8
with a scale a token."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform.quantization import ActSpec, QuantSpec, Scheme, TensorSpec

GROUPS = (64, 32, 16, 8)
"""Elements that share a scale in int4, by preference."""

_TOKENS = ActSpec("int8", granularity="token")


def candidates(name: str, k: int) -> Sequence[Scheme]:
    """Schemes of a name that a weight of k inputs can have, the preferred first; none where no group divides k."""
    if name == "int8":
        return (_int8(),)
    assert name == "int4", name
    return tuple(_int4(group) for group in GROUPS if k % group == 0)


def _int8() -> Scheme:
    """A float32 scale a row."""
    parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(QuantSpec("int8", "channel"), _TOKENS, parts=parts)


def _int4(group: int) -> Scheme:
    """Two elements a byte, the first in the low half, 8 added; a bfloat16 scale a group, which may be negative."""
    parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, group))}
    return Scheme(QuantSpec("int4", "group", group, scale_dtype="bfloat16"), _TOKENS, parts=parts)
