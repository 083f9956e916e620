"""Schemes in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.platform.quantization import ActSpec, QuantSpec, Scheme

_SHARED: Mapping[str, str] = MappingProxyType(
    {"channel": "one scale per row", "token": "one scale per token", "tensor": "one scale"}
)


def describe_scheme(scheme: Scheme) -> str:
    """A scheme in words."""
    text = _numbers(scheme.weight)
    return text if scheme.activation is None else f"{text}; activations {_numbers(scheme.activation)}"


def _numbers(spec: QuantSpec) -> str:
    """The numbers of a weight or an activation in words."""
    if spec.encoding is not None:
        return f"{spec.dtype}, in blocks of {spec.encoding.elements}"
    if spec.block is not None:
        shared = f"one scale per block of {spec.block[0]} x {spec.block[1]}"
    elif spec.group:
        shared = f"one scale per {'token and ' if isinstance(spec, ActSpec) else ''}group of {spec.group}"
    else:
        shared = _SHARED[spec.granularity]
    return f"{spec.dtype}, {shared}"
