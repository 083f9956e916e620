"""Quantizes a weight into the parts of a scheme, rounding each element to the nearest value."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import Scheme
from tessera.quantization.encoders import encode

_STRETCH = 1 << 18  # elements that are converted to float32 at a time; they fit in a core's own cache


def quantised(weight: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """weight [..., n, k] of floats -> the scheme's parts: "weight" [..., n, k], or [..., n, k / 2] for int4, and
    "scale" [..., n], or [..., n, k / group] if groups of inputs share a scale, or [..., n / rows, k / inputs], rounded
    up, if blocks do; with an encoding, "weight" in its blocks. Needs little memory beyond these."""
    if scheme.weight.encoding is not None:
        return {"weight": encode(scheme.weight.dtype, weight)}
    if scheme.weight.block is not None:
        return _in_blocks(weight, scheme, scheme.weight.block)
    rows, k = weight.flatten(0, -2), weight.shape[-1]
    groups = k // (scheme.weight.group or k)
    stored = rows.new_empty(len(rows), k // scheme.parts["weight"].per[-1], dtype=_dtype(scheme, "weight"))
    scales = rows.new_empty(len(rows), groups, dtype=_dtype(scheme, "scale"))
    step = max(_STRETCH // k, 1)
    for start in range(0, 0 if rows.is_meta else len(rows), step):
        some = slice(start, start + step)
        wide = rows[some].to(torch.float32, copy=True).reshape(-1, groups, k // groups)
        scale = _scale(wide, scheme).to(scales.dtype)
        scales[some] = scale[..., 0]
        stored[some] = _elements(wide, scale.float(), scheme).flatten(1)
    lead = weight.shape[:-1]
    of_groups = (groups,) if scheme.weight.group else ()
    return {"weight": stored.view(*lead, stored.shape[1]), "scale": scales.view(*lead, *of_groups)}


def _in_blocks(weight: Tensor, scheme: Scheme, block: tuple[int, int]) -> dict[str, Tensor]:
    """Weights whose scales are those of blocks, one row of blocks at a time."""
    (rows, inputs), (*lead, n, k) = block, weight.shape
    stored = torch.empty_like(weight, dtype=_dtype(scheme, "weight"))
    scales = weight.new_empty(*lead, -(-n // rows), -(-k // inputs), dtype=_dtype(scheme, "scale"))
    for number in range(0 if weight.is_meta else scales.shape[-2]):
        some = slice(number * rows, min((number + 1) * rows, n))
        wide = torch.nn.functional.pad(weight[..., some, :].float(), (0, -k % inputs)).unflatten(-1, (-1, inputs))
        blocks = wide.transpose(-3, -2).flatten(-2)  # [..., blocks, rows x inputs]
        scale = _scale(blocks, scheme).to(scales.dtype)
        scales[..., number, :] = scale[..., 0]
        elements = _elements(blocks, scale.float(), scheme).unflatten(-1, (-1, inputs))
        stored[..., some, :] = elements.transpose(-3, -2).flatten(-2)[..., :k]
    return {"weight": stored, "scale": scales}


def _scale(wide: Tensor, scheme: Scheme) -> Tensor:
    """wide [rows, groups, group] -> [rows, groups, 1]. For int4, the element with the largest magnitude becomes -8,
    which has no positive counterpart."""
    if scheme.weight.dtype == "int4":
        most, least = wide.amax(-1, keepdim=True), wide.amin(-1, keepdim=True)
        return torch.where(most > -least, most, least) / -8
    return wide.abs().amax(-1, keepdim=True) / _limit(_dtype(scheme, "weight"))


def _elements(wide: Tensor, scale: Tensor, scheme: Scheme) -> Tensor:
    """The elements as they are stored, for the scale as it is stored. Overwrites wide."""
    scaled = wide.div_(torch.where(scale == 0, 1.0, scale))
    if scheme.weight.dtype == "int4":
        return _in_pairs(scaled.round_().clamp_(-8, 7).add_(8).to(torch.uint8))
    dtype = _dtype(scheme, "weight")
    limit = _limit(dtype)
    return (scaled if dtype.is_floating_point else scaled.round_()).clamp_(-limit, limit).to(dtype)


def _in_pairs(elements: Tensor) -> Tensor:
    """[..., group] of 0 to 15 -> [..., group / 2]."""
    return elements[..., 0::2] | elements[..., 1::2] << 4


def _limit(dtype: torch.dtype) -> float:
    return float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)


def _dtype(scheme: Scheme, part: str) -> torch.dtype:
    return torch_dtype(scheme.parts[part].dtype)
