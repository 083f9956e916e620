"""Weights of int8 or int4, with scales of rows or groups, and with zero points, as kernels take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Packed, QuantSpec, Reason, Scheme, TensorSpec
from tessera_cpu import native as kernels
from tessera_cpu.activations import INT8
from tessera_cpu.blocks import BLOCKS
from tessera_cpu.coded import CodedProducts, Form

_SCALINGS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"bfloat16": (kernels.BF16_SCALES, kernels.ZEROS), "float16": (kernels.HALF, kernels.HALF_ZEROS)}
)
"""By the dtype of the scales of groups: without zero points and with."""


def served(scheme: Scheme) -> Scheme | Reason:
    """The scheme with quantized activations, which the kernels need, or why it is not supported."""
    weight = scheme.weight
    if scheme.activation not in (None, INT8, ActSpec("int8", granularity="token")):
        return "this kernel takes int8 activations with one scale per token or group of 32"
    if weight.encoding is not None:
        known = weight.dtype in BLOCKS
        return dataclasses.replace(scheme, activation=INT8) if known else f"no products with blocks of {weight.dtype}"
    bits, group = {"int8": 8, "int4": 4}.get(weight.dtype), weight.group
    parts = {"weight": TensorSpec("uint8", (1, 2)) if bits == 4 else TensorSpec("int8", (1, 1))}
    if weight == QuantSpec("int8", "channel"):
        parts["scale"] = TensorSpec("float32", (1,))
    elif bits and weight.granularity == "group" and group % 8 == 0 and weight.scale_dtype in _SCALINGS:
        parts["scale"] = TensorSpec(weight.scale_dtype, (1, group))
        if not weight.symmetric:
            parts["zero_point"] = TensorSpec("int8", (1, group))
    else:
        return (
            "this kernel takes int8 weights with one float32 scale per row, or int8 or int4 weights with one bfloat16 "
            "or float16 scale per group of a multiple of 8 inputs"
        )
    if dict(scheme.parts) != parts:
        return "its parts are stored in another way"
    return dataclasses.replace(scheme, activation=INT8)


class QuantizedProducts(CodedProducts):
    """scheme: a result of served()."""

    def __init__(self, native: Any, scheme: Scheme) -> None:
        weight = scheme.weight
        pairs = weight.dtype == "int4"
        self.zero, self.stored = (8, kernels.PAIRS) if pairs else (128, kernels.WITH_SIGN)
        codes, offset = kernels.FOURS if pairs else kernels.BYTES, self.zero if weight.symmetric else 0
        plain, with_zeros = _SCALINGS[weight.scale_dtype] if weight.group else (kernels.BY_ROW, kernels.BY_ROW)
        scaling = plain if weight.symmetric else with_zeros
        super().__init__(native, Form(codes, scaling, offset, weight.group))

    def pack(self, raw: Packed) -> Tensor:
        stored, scale = raw["weight"], raw["scale"]
        k = stored.shape[1] * (2 if self.stored == kernels.PAIRS else 1)
        if not self.form.group:
            return self.packed(stored, self.stored, k, [scale.view(-1, 1, 1)])
        fields = [scale.unsqueeze(-1)]
        if "zero_point" in raw:
            fields.append((raw["zero_point"].to(torch.int16) + self.zero).to(torch.uint8).unsqueeze(-1))
        return self.packed(stored, self.stored, k, fields)
