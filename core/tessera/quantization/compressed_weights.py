"""Weights rounded to the nearest and stored as compressed-tensors' formats have them (vllm-project/compressed-tensors,
src/compressed_tensors/compressors), to be written into a folder. formats/compressed_tensors.py reads them.

A weight [n, k] becomes, with a float32 scale for each row,
- int-quantized: weight, int8 [n, k]; weight_scale [n, 1];
- float-quantized: weight, fp8 e4m3 [n, k]; weight_scale [n, 1];
or, with a scale in the weight's dtype for each group of inputs,
- pack-quantized: weight_packed, int32 [n, k / 8], eight codes in a word, the first in the lowest bits; weight_scale
  [n, k / group]; weight_shape, int64 [2]; with zero points weight_zero_point, int32 [n / 8, k / group], packed along
  the rows. Codes and zero points are stored with 8 added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

_AT_A_TIME = 1 << 22
"""Elements that are rounded at a time."""
_SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
"""Of the range of a group, those that its codes may reach over; what is outside becomes the nearest code."""
_BITS = 4  # of a packed code
_IN_WORD = 32 // _BITS


@dataclass(frozen=True)
class CompressedForm:
    """How the weights of Linear layers are stored."""

    # Of an element, and of activations if they are rounded.
    kind: Literal["int", "float"]
    # Of an element: 4 or 8.
    bits: int
    # Inputs that share a scale; 0 for the whole row.
    group: int = 0
    # Whether a code stands for 0 that is not the middle one.
    zero_points: bool = False
    # Whether activations are rounded to the same kind, with a scale for each token.
    activations: bool = True

    @property
    def name(self) -> str:
        """The value of `format`."""
        return "pack-quantized" if self.group else f"{self.kind}-quantized"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest code of integers."""
        return -(1 << self.bits - 1), (1 << self.bits - 1) - 1

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a weight of this shape can be stored so."""
        return len(shape) == 2 and (not self.group or (shape[1] % self.group == 0 and shape[1] % _IN_WORD == 0))

    def config(self, ignored: Sequence[str]) -> dict[str, Any]:
        """quantization_config of config.json. ignored: the names of Linear layers that stay as they are."""
        strategy = "group" if self.group else "channel"
        weights = {
            "num_bits": self.bits, "type": self.kind, "symmetric": not self.zero_points, "strategy": strategy,
            "group_size": self.group or None, "dynamic": False,
        }  # fmt: skip
        activations = {
            "num_bits": self.bits, "type": self.kind, "symmetric": True, "strategy": "token", "group_size": None,
            "dynamic": True,
        }  # fmt: skip
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": activations if self.activations else None,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.name,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": [*ignored],
            "kv_cache_scheme": None,
        }


def compressed(weight: Tensor, form: CompressedForm) -> dict[str, Tensor]:
    """weight [n, k] of floats, which must fit the form -> what is stored instead, by the end of its name."""
    return compressed_codes(*_by_rows(weight, form), weight.shape, form)


def compressed_codes(
    codes: Tensor, scale: Tensor, zero: Tensor, shape: Sequence[int], form: CompressedForm
) -> dict[str, Tensor]:
    """What is stored for codes [n, k], int8 or fp8, scales [n, groups] and zero points [n, groups], int8, by the end of
    its name. shape: of the weight."""
    if not form.group:
        dtype = torch.int8 if form.kind == "int" else torch.float8_e4m3fn
        return {"weight": codes.to(dtype), "weight_scale": scale.float()}
    stored = {
        "weight_packed": _words(codes),
        "weight_scale": scale,
        "weight_shape": torch.tensor(shape, dtype=torch.int64),
    }
    return {**stored, "weight_zero_point": _words(zero.T).T.contiguous()} if form.zero_points else stored


def integer_scales(weight: Tensor, form: CompressedForm) -> tuple[Tensor, Tensor]:
    """Scales [n, groups], as they are stored, and zero points [n, groups], int8, of a weight [n, k] in integers: those
    with which rounding to the nearest loses least."""
    _, scale, zero = _by_rows(weight, form)
    return scale, zero


def _by_rows(weight: Tensor, form: CompressedForm) -> tuple[Tensor, Tensor, Tensor]:
    """As _rounded(), a few rows at a time."""
    step = max(_AT_A_TIME // weight.shape[1], 1)
    codes, scale, zero = (
        torch.cat(parts) for parts in zip(*(_rounded(part, form) for part in weight.split(step)), strict=True)
    )
    return codes, scale, zero


def _rounded(weight: Tensor, form: CompressedForm) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n, k], int8 or fp8; scales and zero points [n, groups]."""
    values = weight.float().unflatten(1, (-1, form.group or weight.shape[1]))
    if form.kind == "float":
        limit = torch.finfo(torch.float8_e4m3fn).max
        scale = values.abs().amax(-1, keepdim=True) / limit
        codes = (values / _divisor(scale)).clamp(-limit, limit).to(torch.float8_e4m3fn)
        return codes.flatten(1), scale[..., 0], torch.zeros_like(scale[..., 0])
    best, *others = (_integers(values, share, weight.dtype, form) for share in _SHARES)
    for other in others:
        better = other[0] < best[0]
        best = tuple(torch.where(better, new, old) for new, old in zip(other, best, strict=True))
    _, codes, scale, zero = best
    return (
        codes.flatten(1).to(torch.int8),
        scale[..., 0].to(weight.dtype if form.group else torch.float32),
        zero[..., 0].to(torch.int8),
    )


def _integers(values: Tensor, share: float, dtype: torch.dtype, form: CompressedForm) -> tuple[Tensor, ...]:
    """The squared error of each group [n, groups, 1], if codes reach over a share of its range; codes; scale; zero
    point. All float32. The scale is one that the stored dtype has."""
    low, high = form.limits
    most, least = values.amax(-1, keepdim=True).clamp(min=0), values.amin(-1, keepdim=True).clamp(max=0)
    if form.zero_points:
        scale = (most - least) * (share / (high - low))
    else:
        scale = torch.maximum(most, -least) * (share / high)
    if form.group:
        scale = scale.to(dtype).float()
    divisor = _divisor(scale)
    zero = (low - least * share / divisor).round().clamp(low, high) if form.zero_points else torch.zeros_like(scale)
    codes = (values / divisor + zero).round().clamp(low, high)
    error = ((codes - zero) * scale - values).square().sum(-1, keepdim=True)
    return error, codes, scale, zero


def _divisor(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def _words(codes: Tensor) -> Tensor:
    """int8 [n, k] of -8 to 7 -> int32 [n, k / 8], rounded up."""
    padded = torch.nn.functional.pad(codes.to(torch.int32) + (1 << _BITS - 1), (0, -codes.shape[1] % _IN_WORD))
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)
    return (padded.unflatten(1, (-1, _IN_WORD)) << shifts).sum(-1, dtype=torch.int32)


def decoded(parts: Mapping[str, Tensor], form: CompressedForm) -> Tensor:
    """float32 [n, k] of what is stored of a weight in groups of integers."""
    n, k = parts["weight_shape"].tolist()
    values = _codes(parts["weight_packed"])[:, :k].unflatten(1, (-1, form.group))
    if form.zero_points:
        values = values - _codes(parts["weight_zero_point"].T).T[:n, :, None]
    return (values * parts["weight_scale"].float()[..., None]).flatten(1)


def _codes(words: Tensor) -> Tensor:
    """int32 [n, m] -> float32 [n, 8 m] of -8 to 7."""
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts & (1 << _BITS) - 1) - (1 << _BITS - 1)).flatten(1).float()
