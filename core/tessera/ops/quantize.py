"""Quantized activations, which have scales, and quantized weights, in the parts of a scheme; dequantizes both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.ops.tensors import DTYPES, HIDDEN, torch_dtype
from tessera.platform.ops import Op, Packed, TrialInputs
from tessera.platform.quantization import ActSpec, Scheme

__all__ = ["QuantizeSpec", "Quantized"]

INT8, INT8_WITH_SUMS = (ActSpec("int8", granularity="token", sums=sums) for sums in (0, 8))


class Quantized(NamedTuple):
    """An activation with its scales: data [T, n] in the ActSpec's dtype, scale [T, 1] or [1]; the value is data *
    scale. sums [T, n / ActSpec.sums] int32: the sum of each ActSpec.sums elements of data; None unless asked for. A
    linear accepts it in place of a tensor."""

    data: Tensor
    scale: Tensor
    sums: Tensor | None = None


Activation = Tensor | Quantized


@dataclass(frozen=True)
class QuantizeSpec:
    """x [T, n] of `dtype` -> Quantized, as `emit` describes."""

    n: int
    dtype: str
    emit: ActSpec


def quantize(spec: QuantizeSpec, x: Tensor) -> Quantized:
    """x [T, n] act -> Quantized: data [T, n] of the emitted dtype; scale [T, 1] or [1] float32; sums [T, n / emit.sums]
    int32 where that is not 0, else None

    Symmetric. scale is [T, 1] where the granularity is "token", [1] where it is "tensor"."""
    limit, wide = _limits(spec.emit).max, x.float()
    peak = wide.abs().amax(-1, keepdim=True) if spec.emit.granularity == "token" else wide.abs().amax().reshape(1)
    scale = peak.clamp(min=1e-12) / limit
    data = _divided(wide, scale, spec.emit)
    return Quantized(data, scale, _sums(data, spec.emit.sums) if spec.emit.sums else None)


def rounded(x: Tensor, activation: ActSpec | None, scale: Tensor | None) -> Tensor:
    """x [T, n] float32 -> float32, rounded to the numbers that an activation of a scheme can have. scale: the weight's
    input_scale if the activation is static."""
    if activation is None:
        return x
    if activation.static:
        assert scale is not None, "a static activation comes with its scale"
        return _divided(x, scale, activation).float() * scale
    data, of_token, _ = quantize(QuantizeSpec(x.shape[-1], "float32", activation), x)
    return data.float() * of_token


def _divided(wide: Tensor, scale: Tensor, emit: ActSpec) -> Tensor:
    """wide / scale in the emitted dtype, clamped to its range."""
    dtype, limits = torch_dtype(emit.dtype), _limits(emit)
    data = wide / scale
    return (data if dtype.is_floating_point else data.round()).clamp(limits.min, limits.max).to(dtype)


def _limits(emit: ActSpec) -> Any:
    dtype = torch_dtype(emit.dtype)
    return (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype)


def _sums(data: Tensor, size: int) -> Tensor:
    """[T, n] -> [T, n / size] int32."""
    return data.unflatten(-1, (data.shape[-1] // size, size)).sum(-1, dtype=torch.int32)


def plain(x: Activation, dtype: torch.dtype) -> Tensor:
    """data * scale in `dtype`; an activation that is not Quantized is returned as it is."""
    return (x.data.float() * x.scale).to(dtype) if isinstance(x, Quantized) else x


def meaning(parts: Packed, scheme: Scheme) -> Tensor:
    """Dequantizes the parts of a weight: -> [..., n, k] float32."""
    stored, scale = parts["weight"], parts["scale"].float()
    elements = apart(stored) if scheme.weight.dtype == "int4" else stored
    if not scheme.weight.group:
        return elements.float() * scale.unsqueeze(-1)
    groups = elements.float().unflatten(-1, (-1, scheme.weight.group))
    if not scheme.weight.symmetric:
        groups = groups - parts["zero_point"].float().unsqueeze(-1)
    return (groups * scale.unsqueeze(-1)).flatten(-2)


def apart(pairs: Tensor) -> Tensor:
    """int4 [..., n, k / 2], two per byte -> int8 [..., n, k] of -8 to 7."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2).to(torch.int8) - 8


def part_rows(weight: Packed, scheme: Scheme, some: slice | Tensor) -> Mapping[str, Tensor]:
    """The parts of some of a weight's rows."""
    return {part: weight[part][some] for part, spec in scheme.parts.items() if spec.per}


def _specs() -> Iterator[QuantizeSpec]:
    for dtype in DTYPES:
        yield QuantizeSpec(40, dtype, INT8)
        yield QuantizeSpec(40, dtype, INT8_WITH_SUMS)


def _inputs(spec: QuantizeSpec, make: TrialInputs) -> tuple[Any, ...]:
    return (make.normal(make.tokens, spec.n, dtype=spec.dtype),)


OPS = (
    Op(
        "quantize",
        "quant",
        quantize,
        sample_specs=_specs,
        inputs=_inputs,
        served_spec=lambda dtype: QuantizeSpec(HIDDEN, dtype, INT8),
    ),
)
