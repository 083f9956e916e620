"""Quantized activations, which have scales, and quantized weights, in the parts of a scheme; dequantizes both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.ops.tensors import DTYPES, HIDDEN, torch_dtype
from tessera.platform.ops import Op, Packed, TrialInputs
from tessera.platform.quantization import ActSpec, Scheme

__all__ = ["QuantizeSpec", "Quantized"]

INT8, INT8_WITH_SUMS = (ActSpec("int8", granularity="token", sums=sums) for sums in (0, 8))
IN_GROUPS = tuple(ActSpec(dtype, granularity="group", group=16) for dtype in ("int8", "fp8_e4m3"))
EMITTED = (INT8, ActSpec("fp8_e4m3", granularity="token"), *IN_GROUPS)
"""How ops are asked to emit their results."""


class Quantized(NamedTuple):
    """An activation with its scales: data [T, n] in the ActSpec's dtype, scale [T, 1], [1] or, with a scale for each
    group, [T, n / ActSpec.group], rounded up; the value is data * scale. sums [T, n / ActSpec.sums] int32: the sum of
    each ActSpec.sums elements of data; None unless asked for. group: ActSpec.group. A linear accepts it in place of a
    tensor."""

    data: Tensor
    scale: Tensor
    sums: Tensor | None = None
    group: int = 0


Activation = Tensor | Quantized


@dataclass(frozen=True)
class QuantizeSpec:
    """x [T, n] of `dtype` -> Quantized, as `emit` describes."""

    n: int
    dtype: str
    emit: ActSpec


def quantize(spec: QuantizeSpec, x: Tensor) -> Quantized:
    """x [T, n] act -> Quantized: data [T, n] of the emitted dtype; scale [T, 1], [1] or [T, n / emit.group] float32;
    sums [T, n / emit.sums] int32 where that is not 0, else None

    Symmetric. scale is [T, 1] where the granularity is "token", [1] where it is "tensor". Where it is "group", the last
    group of a row may be partial, and the number of scales is rounded up."""
    emit, wide = spec.emit, x.float()
    scale = _peaks(wide, emit).clamp(min=1e-12) / _limits(emit).max
    data = _divided(wide, _spread(scale, emit.group, spec.n), emit)
    return Quantized(data, scale, sums_of(data, emit.sums) if emit.sums else None, emit.group)


def rounded(x: Tensor, activation: ActSpec | None, scale: Tensor | None) -> Tensor:
    """x [T, n] float32 -> float32, rounded to the numbers that an activation of a scheme can have. scale: the weight's
    input_scale if the activation is static."""
    if activation is None:
        return x
    if activation.static:
        assert scale is not None, "a static activation comes with its scale"
        return _divided(x, scale, activation).float() * scale
    return plain(quantize(QuantizeSpec(x.shape[-1], "float32", activation), x), torch.float32)


def _peaks(wide: Tensor, emit: ActSpec) -> Tensor:
    """The largest magnitude of the elements that share a scale: [T, n] -> [T, 1], [1] or [T, groups]."""
    magnitudes = wide.abs()
    if emit.granularity == "token":
        return magnitudes.amax(-1, keepdim=True)
    if emit.granularity == "tensor":
        return magnitudes.amax().reshape(1)
    assert emit.granularity == "group", emit.granularity
    missing = -wide.shape[-1] % emit.group
    return torch.nn.functional.pad(magnitudes, (0, missing)).unflatten(-1, (-1, emit.group)).amax(-1)


def _spread(scale: Tensor, size: int, n: int) -> Tensor:
    """[..., groups] of `size` elements, the last perhaps partial, -> [..., n]. size 0: as it is."""
    return scale.unsqueeze(-1).expand(*scale.shape, size).flatten(-2)[..., :n] if size else scale


def _divided(wide: Tensor, scale: Tensor, emit: ActSpec) -> Tensor:
    """wide / scale in the emitted dtype, clamped to its range."""
    dtype, limits = torch_dtype(emit.dtype), _limits(emit)
    data = wide / scale
    return (data if dtype.is_floating_point else data.round()).clamp(limits.min, limits.max).to(dtype)


def _limits(emit: ActSpec) -> Any:
    dtype = torch_dtype(emit.dtype)
    return (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype)


def sums_of(data: Tensor, size: int) -> Tensor:
    """[T, n] -> [T, n / size] int32."""
    return data.unflatten(-1, (data.shape[-1] // size, size)).sum(-1, dtype=torch.int32)


def plain(x: Activation, dtype: torch.dtype) -> Tensor:
    """data * scale in `dtype`; an activation that is not Quantized is returned as it is."""
    if not isinstance(x, Quantized):
        return x
    return (x.data.float() * _spread(x.scale, x.group, x.data.shape[-1])).to(dtype)


def meaning(parts: Packed, scheme: Scheme) -> Tensor:
    """Dequantizes the parts of a weight: -> [..., n, k] float32."""
    if scheme.weight.encoding is not None:
        return scheme.weight.encoding.dequantize(parts)
    block = scheme.weight.block
    if block is None:
        return _of_rows(parts, scheme)
    rows = torch.arange(parts["weight"].shape[-2], device=parts["scale"].device) // block[0]
    return _of_rows({**parts, "scale": parts["scale"].index_select(-2, rows)}, scheme)


def meaning_of(weight: Packed, scheme: Scheme, rows: slice | Tensor) -> Tensor:
    """Dequantizes some of the rows of a weight [n, k]: -> [rows, k] float32."""
    if scheme.weight.encoding is not None:
        taken = {part: weight[part][rows] if spec.per else weight[part] for part, spec in scheme.parts.items()}
        return scheme.weight.encoding.dequantize(taken)
    parts = {part: weight[part][rows] for part, spec in scheme.parts.items() if spec.per and part != "scale"}
    return _of_rows({**parts, "scale": _scale_rows(weight["scale"], scheme, rows, len(weight["weight"]))}, scheme)


def _scale_rows(scale: Tensor, scheme: Scheme, selected: slice | Tensor, n: int) -> Tensor:
    """The scales of some of a weight's n rows, which share them with others if they are those of blocks."""
    if scheme.weight.block is None:
        return scale[selected]
    rows = torch.arange(n, device=scale.device)[selected] if isinstance(selected, slice) else selected
    return scale[rows // scheme.weight.block[0]]


def _of_rows(parts: Packed, scheme: Scheme) -> Tensor:
    """Dequantizes parts whose scales are [..., n], or [..., n, groups or blocks]."""
    stored, scale = parts["weight"], parts["scale"].float()
    elements = (apart(stored) if scheme.weight.dtype == "int4" else stored).float()
    if scheme.weight.block is not None:
        return elements * _spread(scale, scheme.weight.block[1], elements.shape[-1])
    if not scheme.weight.group:
        return elements * scale.unsqueeze(-1)
    groups = elements.unflatten(-1, (-1, scheme.weight.group))
    if not scheme.weight.symmetric:
        groups = groups - parts["zero_point"].float().unsqueeze(-1)
    return (groups * scale.unsqueeze(-1)).flatten(-2)


def apart(pairs: Tensor) -> Tensor:
    """int4 [..., n, k / 2], two per byte -> int8 [..., n, k] of -8 to 7."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2).to(torch.int8) - 8


def _specs() -> Iterator[QuantizeSpec]:
    for dtype in DTYPES:
        yield QuantizeSpec(40, dtype, INT8)
        yield QuantizeSpec(40, dtype, INT8_WITH_SUMS)
        for emit in IN_GROUPS:
            yield QuantizeSpec(40, dtype, emit)


def _inputs(spec: QuantizeSpec, make: TrialInputs) -> tuple[Any, ...]:
    """Some rows are zeros, or small, so that their scales are."""
    x = make.normal(make.tokens, spec.n)
    x[2::7] = 0
    x[4::7] *= 1e-4 if spec.dtype == "float16" else 1e-7
    return (x.to(torch_dtype(spec.dtype)),)


def _large() -> Iterator[tuple[QuantizeSpec, int]]:
    for dtype in DTYPES:
        for emit in EMITTED:
            yield QuantizeSpec(2056, dtype, emit), 3


OPS = (
    Op(
        "quantize",
        "quant",
        quantize,
        sample_specs=_specs,
        large_samples=_large,
        inputs=_inputs,
        served_spec=lambda dtype: QuantizeSpec(HIDDEN, dtype, INT8),
    ),
)
