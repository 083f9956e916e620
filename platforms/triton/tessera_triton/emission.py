"""Activations that kernels emit quantized: the dtypes of 8 bits, and what is not emitted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from tessera.platform import ActSpec
from tessera_triton.facts import DeviceFacts, power_of_two

ROW = 16_384
"""The most elements of a row that a program holds in registers."""
GROUPED = 2048
"""The same, where groups of them have scales."""


class Narrow(NamedTuple):
    """A dtype of 8 bits, and its range."""

    dtype: torch.dtype
    lowest: float
    highest: float


NARROW: Mapping[str, Narrow] = MappingProxyType(
    {
        "int8": Narrow(torch.int8, -128.0, 127.0),
        "fp8_e4m3": Narrow(torch.float8_e4m3fn, -448.0, 448.0),
        "fp8_e4m3fnuz": Narrow(torch.float8_e4m3fnuz, -240.0, 240.0),
    }
)
"""What can be emitted, by the dtype of an ActSpec."""


def emitted(x: torch.Tensor, emit: ActSpec | None) -> tuple[torch.dtype, float]:
    """The dtype of a kernel's result and, if it is quantized with scales of tokens, its largest number."""
    return (x.dtype, 1.0) if emit is None else (NARROW[emit.dtype].dtype, NARROW[emit.dtype].highest)


def why_not_quantized(emit: ActSpec, facts: DeviceFacts) -> str | None:
    """Why activations cannot be quantized so, if they cannot."""
    if emit.dtype not in NARROW or not emit.symmetric:
        return "quantizes to int8 or fp8, symmetrically"
    narrow = str(NARROW[emit.dtype].dtype).removeprefix("torch.")
    if narrow not in ("int8", facts.fp8):
        return f"{facts.name} has no {narrow}"
    if emit.granularity == "tensor" and not emit.static:
        return "a scale for all tokens is not computed"
    if emit.granularity == "group" and not _is_power(emit.group):
        return f"groups of {emit.group}; kernels take powers of two"
    if emit.sums and (emit.granularity != "token" or emit.dtype != "int8" or not _is_power(emit.sums)):
        return "sums are those of a power of two of int8, with a scale per token"
    return None


def why_not_emitted(n: int, emit: ActSpec | None, facts: DeviceFacts) -> str | None:
    """Why a kernel that computes a row of n elements at once cannot emit it so, if it cannot."""
    if n > ROW:
        return f"rows of {n}; kernels take up to {ROW}"
    if emit is None:
        return None
    if emit.granularity != "token" or emit.sums or emit.static:
        return "emits int8 or fp8 with one scale per token"
    return why_not_quantized(emit, facts)


def _is_power(number: int) -> bool:
    return 0 < number <= GROUPED and number == power_of_two(number)
