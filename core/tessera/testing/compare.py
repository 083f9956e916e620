"""Comparing results: one table of tolerances, and where two results differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.ops import REFERENCE, Quantized
from tessera.ops.quantize import plain, sums_of
from tessera.platform.ops import Op

TOLERANCES: Mapping[str, float] = MappingProxyType({"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2})
"""By dtype; both relative and absolute, for elements of about 1."""

_WIDE = 512  # elements over which rounding evens out
_SPREAD = 256  # elements whose errors are taken together


def tolerance(op: str | Op[Any], dtype: str) -> float:
    """The tolerance of an op in a dtype: its own (Op.tolerances), else the dtype's. op: a name of core's, or an Op."""
    own = (REFERENCE[op] if isinstance(op, str) else op).tolerances
    return own.get(dtype, TOLERANCES[dtype])


def assert_same(result: Any, expected: Any, tolerance: float) -> None:
    """Asserts that nested results agree: integers exactly, floats within the tolerance, relative and absolute. All
    elements may be off by as much, as they are where something between is rounded to a few bits."""
    text = difference(result, expected, tolerance, together=False)
    assert text is None, text


def difference(
    result: Any, expected: Any, tolerance: float, *, emitted: bool = False, together: bool = True
) -> str | None:
    """Where nested results differ, in one line; None if they agree. NaN never agrees with anything. emitted: an op that
    computes something else has quantized the result, so that a number may be rounded to the one beside it. together:
    the elements of a 16-bit result are no further off on the whole than rounding explains."""
    if isinstance(expected, Tensor):
        return _of_tensors(result, expected, tolerance, together=together)
    if emitted and isinstance(expected, Quantized):
        return _of_emitted(result, expected, tolerance)
    if isinstance(expected, tuple):
        if not isinstance(result, tuple) or len(result) != len(expected):
            return f"{type(result).__name__} instead of {len(expected)} results"
        for place, (part, other) in enumerate(zip(result, expected, strict=True)):
            text = difference(part, other, tolerance, emitted=emitted, together=together)
            if text is not None:
                return f"result {place}: {text}"
        return None
    return None if result is expected else f"{type(result).__name__} instead of {expected}"


def _of_tensors(result: Any, expected: Tensor, tolerance: float, *, together: bool = True) -> str | None:
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
        return leaning(result, expected, together=together)
    first = tuple(int(place) for place in wrong.nonzero()[0])
    found, other = result[first].item(), expected[first].item()
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, first {list(first)}: {found:.6g}, not {other:.6g}"


def _of_emitted(result: Any, expected: Quantized, tolerance: float) -> str | None:
    if not isinstance(result, Quantized):
        return f"{type(result).__name__} instead of a quantized result, which the spec's emit wants"
    if result.data.dtype != expected.data.dtype or result.data.shape != expected.data.shape:
        return f"data {result.data.dtype} of {list(result.data.shape)}, not {expected.data.dtype} of " + str(
            list(expected.data.shape)
        )
    if result.group != expected.group:
        return f"group is {result.group}, not {expected.group}"
    zero = expected.scale <= _SCALE_OF_ZEROS  # any number will do
    ratio = torch.where(zero & result.scale.isfinite(), 1.0, result.scale / expected.scale)
    scales = _of_tensors(ratio, torch.ones_like(ratio), tolerance)
    if scales is not None:
        return f"scales as parts of the right ones: {scales}"
    if expected.sums is not None:
        sums = difference(result.sums, sums_of(result.data, expected.data.shape[-1] // expected.sums.shape[-1]), 0.0)
        if sums is not None:
            return f"sums of its own data: {sums}"
    found, other = (plain(one, torch.float32).double() for one in (result, expected))
    step = plain(expected._replace(data=torch.ones_like(expected.data)), torch.float32).double()
    if expected.data.is_floating_point():
        step = torch.maximum(step * _LEAST_FP8, other.abs() * torch.finfo(expected.data.dtype).eps)
    off = (found - other) / step
    if not bool((off.abs() <= _NEXT).all()):
        return f"{int((~(off.abs() <= _NEXT)).sum())} of {off.numel()} numbers are not those beside the right ones"
    lean = float((off * other.sign()).mean()) if off.numel() >= _MANY else 0.0
    return None if abs(lean) <= _LEAN else f"numbers lean by {lean:.2f} of a step: they are cut, not rounded"


_SCALE_OF_ZEROS = 1e-12 / 100
_NEXT = 1.05  # steps
_LEAST_FP8 = 2.0**-9
_MANY = 100  # numbers over which rounding evens out
_LEAN = 0.2  # of a step; cutting digits leans by half of one


def leaning(result: Tensor, expected: Tensor, *, together: bool = True) -> str | None:
    """Whether rounding cannot explain how 16-bit floats differ, in one line; None if it can. Each element may be off by
    a few units, but where they are taken together not all of them by more than one; and rounding does not make a whole
    wide row longer or shorter."""
    if expected.dtype not in (torch.float16, torch.bfloat16) or expected.dim() < 2:
        return None
    eps = torch.finfo(expected.dtype).eps
    found, other = (x.double().nan_to_num(posinf=0.0, neginf=0.0) for x in (result, expected))
    if together and expected.numel() >= _SPREAD:
        whole, apart = float(other.norm()), float((found - other).norm())
        if apart > eps * whole:
            return f"the elements are off by {apart / whole:.2%} on the whole, more than rounding explains"
    if expected.shape[-1] < _WIDE:
        return None
    length = other.square().sum(-1)
    off = ((found * other).sum(-1) - length).abs() / length.clamp(min=torch.finfo(torch.float64).tiny)
    tails = other.pow(4).sum(-1) / length.square().clamp(min=torch.finfo(torch.float64).tiny) * other.shape[-1] / 3
    limit = 4 * eps / math.sqrt(expected.shape[-1]) * tails.clamp(min=1.0).sqrt()  # few large elements even out less
    wrong = off > limit
    return f"the norm of a row is off by {float(off.max()):.2%}, more than rounding explains" if wrong.any() else None
