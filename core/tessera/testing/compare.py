"""Comparing results: one table of tolerances, and where two results differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.ops import REFERENCE
from tessera.platform.ops import Op

TOLERANCES: Mapping[str, float] = MappingProxyType({"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2})
"""By dtype; both relative and absolute, for elements of about 1."""

_WIDE = 512  # elements over which rounding evens out


def tolerance(op: str | Op[Any], dtype: str) -> float:
    """The tolerance of an op in a dtype: its own (Op.tolerances), else the dtype's. op: a name of core's, or an Op."""
    own = (REFERENCE[op] if isinstance(op, str) else op).tolerances
    return own.get(dtype, TOLERANCES[dtype])


def assert_same(result: Any, expected: Any, tolerance: float) -> None:
    """Asserts that nested results agree: integers exactly, floats within the tolerance, relative and absolute."""
    text = difference(result, expected, tolerance)
    assert text is None, text


def difference(result: Any, expected: Any, tolerance: float) -> str | None:
    """Where nested results differ, in one line; None if they agree. NaN never agrees with anything."""
    if isinstance(expected, Tensor):
        return _of_tensors(result, expected, tolerance)
    if isinstance(expected, tuple):
        if not isinstance(result, tuple) or len(result) != len(expected):
            return f"{type(result).__name__} instead of {len(expected)} results"
        for place, (part, other) in enumerate(zip(result, expected, strict=True)):
            text = difference(part, other, tolerance)
            if text is not None:
                return f"result {place}: {text}"
        return None
    return None if result is expected else f"{type(result).__name__} instead of {expected}"


def _of_tensors(result: Any, expected: Tensor, tolerance: float) -> str | None:
    if not isinstance(result, Tensor):
        return f"{type(result).__name__} instead of a tensor"
    if result.shape != expected.shape:
        return f"shape {list(result.shape)} instead of {list(expected.shape)}"
    if result.dtype != expected.dtype:
        return f"{result.dtype} instead of {expected.dtype}"
    if expected.is_floating_point():
        wrong = ~torch.isclose(result.double(), expected.double(), rtol=tolerance, atol=tolerance)
    else:
        wrong = result != expected
    if not wrong.any():
        return leaning(result, expected)
    first = tuple(int(place) for place in wrong.nonzero()[0])
    found, other = result[first].item(), expected[first].item()
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, first {list(first)}: {found:.6g}, not {other:.6g}"


def leaning(result: Tensor, expected: Tensor) -> str | None:
    """Whether a wide row of 16-bit floats has the wrong norm, in one line; None if not. Each element may be off by
    rounding, but rounding does not make a whole row longer or shorter."""
    if expected.dtype not in (torch.float16, torch.bfloat16) or expected.dim() < 2 or expected.shape[-1] < _WIDE:
        return None
    found, other = result.double(), expected.double()
    length = other.square().sum(-1)
    off = ((found * other).sum(-1) - length).abs() / length.clamp(min=torch.finfo(torch.float64).tiny)
    limit = 4 * torch.finfo(expected.dtype).eps / math.sqrt(expected.shape[-1])
    worst = float(off.max()) if off.numel() else 0.0
    return None if worst <= limit else f"the norm of a row is off by {worst:.2%}, more than rounding explains"
