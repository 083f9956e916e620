"""The quantization schemes that --quantization names. In both, activations are int8 with one scale per token."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform.quantization import ActSpec, QuantSpec, Scheme, TensorSpec

GROUPS = (64, 32, 16, 8)
"""How many elements share a scale in int4, preferred sizes first."""

_TOKENS = ActSpec("int8", granularity="token")


def candidates(name: str, k: int) -> Sequence[Scheme]:
    """The schemes of this name for a weight with k inputs, preferred ones first; empty if no group size divides k."""
    if name == "int8":
        return (_int8(),)
    assert name == "int4", name
    return tuple(_int4(group) for group in GROUPS if k % group == 0)


def _int8() -> Scheme:
    """One float32 scale per row."""
    parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(QuantSpec("int8", "channel"), _TOKENS, parts=parts)


def _int4(group: int) -> Scheme:
    """Two elements per byte, the first in the low half, 8 added; a bfloat16 scale per group, which may be negative."""
    parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, group))}
    return Scheme(QuantSpec("int4", "group", group, scale_dtype="bfloat16"), _TOKENS, parts=parts)
