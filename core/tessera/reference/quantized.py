"""What quantized numbers mean: activations, weights in the parts of a scheme, and products of both."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tessera.platform.ops import LinearSpec, Packed, Quantized, QuantizeSpec
from tessera.platform.quantization import ActSpec, Scheme
from tessera.reference.dtypes import torch_dtype

Activation = Tensor | Quantized

_STRETCH = 1 << 22  # elements of a weight that are float32 at a time


def plain(x: Activation, dtype: torch.dtype) -> Tensor:
    """An activation as a tensor, its scales multiplied in."""
    return (x.data.float() * x.scale).to(dtype) if isinstance(x, Quantized) else x


def quantize(spec: QuantizeSpec, x: Tensor) -> Quantized:
    """x [T, n] -> data in the emitted dtype and float32 scale [T, 1] (granularity "token") or [1] ("tensor"),
    symmetric; sums of its groups where they are emitted too."""
    dtype = torch_dtype(spec.emit.dtype)
    limit = float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)
    wide = x.float()
    peak = wide.abs().amax(-1, keepdim=True) if spec.emit.granularity == "token" else wide.abs().amax().reshape(1)
    scale = peak.clamp(min=1e-12) / limit
    data = wide / scale
    data = (data if dtype.is_floating_point else data.round()).clamp(-limit, limit).to(dtype)
    return Quantized(data, scale, _sums(data, spec.emit.sums) if spec.emit.sums else None)


def _sums(data: Tensor, size: int) -> Tensor:
    """[T, n] -> [T, n / size] int32."""
    return data.unflatten(-1, (data.shape[-1] // size, size)).sum(-1, dtype=torch.int32)


def meaning(parts: Packed, scheme: Scheme) -> Tensor:
    """The weight [..., n, k] that a scheme's parts stand for, float32."""
    stored, scale = parts["weight"], parts["scale"].float()
    elements = apart(stored) if scheme.weight.dtype == "int4" else stored
    if not scheme.weight.group:
        return elements.float() * scale.unsqueeze(-1)
    return (elements.float().unflatten(-1, (-1, scheme.weight.group)) * scale.unsqueeze(-1)).flatten(-2)


def apart(pairs: Tensor) -> Tensor:
    """int4 [..., n, k / 2], two a byte -> int8 [..., n, k] of -8 to 7."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2).to(torch.int8) - 8


def product(spec: LinearSpec, x: Activation, weight: Packed) -> Tensor:
    """linear with a weight in the parts of spec.scheme, x [T, k] rounded as the scheme has activations; computed in
    float32."""
    scheme = spec.scheme
    assert scheme is not None
    wide = _rounded(x, scheme.activation, spec)
    result = wide.new_empty(len(wide), spec.n, dtype=torch_dtype(spec.dtype))
    step = max(_STRETCH // spec.k, 1)
    for start in range(0, spec.n, step):
        some = slice(start, start + step)
        sums = wide @ meaning(part_rows(weight, scheme, some), scheme).T
        result[:, some] = sums + weight["bias"][some].float() if spec.bias else sums
    return result


def _rounded(x: Activation, activation: ActSpec | None, spec: LinearSpec) -> Tensor:
    """[T, k] float32."""
    wide = plain(x, torch.float32).float()
    if activation is None:
        return wide
    return plain(quantize(QuantizeSpec(spec.k, spec.dtype, activation), wide), torch.float32)


def part_rows(weight: Packed, scheme: Scheme, some: slice | Tensor) -> Mapping[str, Tensor]:
    """The parts of some of a weight's rows."""
    return {part: weight[part][some] for part in scheme.parts}
