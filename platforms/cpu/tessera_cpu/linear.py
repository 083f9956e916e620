"""Products on oneDNN through torch, their weights repacked once: a plain row-major weight would be repacked, or read
badly, in every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed
from tessera_cpu.output import into

# The packing is made for products of so many rows; it serves others nearly as well.
ROWS = 32


class Linear(Kernel[LinearSpec]):
    """x W^T + b. A weight of experts is packed one by one, by the name of its number."""

    def supports(self, spec: LinearSpec) -> str | None:
        return None if spec.scheme is None else "no quantized weights"

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        if spec.experts:
            packed = {expert_name(number): pack(weight) for number, weight in enumerate(raw["weight"])}
        else:
            packed = {**raw, "weight": pack(raw["weight"])}
        return super().prepare(spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if not _packable(dtype):
            return None
        elements = max(spec.experts, 1) * spec.n * spec.k + (spec.n if spec.bias else 0)
        return elements * dtype.itemsize

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return into(product(x, weight["weight"], weight.get("bias")), out)

        return linear


def expert_name(number: int) -> str:
    """Of one expert's weight among the packed ones."""
    return f"weight.{number}"


def pack(weight: Tensor) -> Tensor:
    """[n, k] in oneDNN's own order; as it is where oneDNN does not multiply this dtype on this processor."""
    if not _packable(weight.dtype):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return packed


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, k] with a weight [n, k], packed or not -> [T, n]."""
    if not weight.is_mkldnn:
        return torch.nn.functional.linear(x, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def _packable(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
