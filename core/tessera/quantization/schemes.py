"""The quantization schemes that --quantization names. In all of them activations have one scale per token: int8, or
fp8 where the weights are fp8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tessera.platform.quantization import ActSpec, QuantSpec, Scheme, TensorSpec

GROUPS = (64, 32, 16, 8)
"""How many elements share a scale in int4, preferred sizes first."""

MIXTURE = "int4"
"""Where a platform multiplies with blocks, this is the mixture of quantization/mixture.py instead."""

_TOKENS = ActSpec("int8", granularity="token")


def candidates(name: str, k: int) -> Sequence[Scheme]:
    """The schemes of this name for a weight with k inputs, preferred ones first; empty if no group size divides k."""
    if name == "int4":
        return tuple(_int4(group) for group in GROUPS if k % group == 0)
    return (_EIGHT_BITS[name],)


def _by_row(dtype: str, stored: str) -> Scheme:
    """One float32 scale per row."""
    parts = {"weight": TensorSpec(stored, (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(QuantSpec(dtype, "channel"), ActSpec(dtype, granularity="token"), parts=parts)


_EIGHT_BITS: Mapping[str, Scheme] = MappingProxyType(
    {"int8": _by_row("int8", "int8"), "fp8": _by_row("fp8_e4m3", "float8_e4m3fn")}
)


def _int4(group: int) -> Scheme:
    """Two elements per byte, the first in the low half, 8 added; a bfloat16 scale per group, which may be negative."""
    parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, group))}
    return Scheme(QuantSpec("int4", "group", group, scale_dtype="bfloat16"), _TOKENS, parts=parts)
