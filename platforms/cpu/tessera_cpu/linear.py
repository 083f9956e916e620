"""The ops that are products: linear, and the packing of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed
from tessera_cpu.products import products


class Linear(Kernel[LinearSpec]):
    """x W^T + b. A weight of experts is packed one by one, by the name of its number."""

    def supports(self, spec: LinearSpec) -> str | None:
        return None if spec.scheme is None else "no quantized weights"

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        pack = products(spec.dtype).pack
        if spec.experts:
            packed = {expert_name(number): pack(weight) for number, weight in enumerate(raw["weight"])}
        else:
            packed = {**raw, "weight": pack(raw["weight"])}
        return super().prepare(spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        one = products(spec.dtype).packed_bytes(spec.n, spec.k)
        if one is None:
            return None
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return max(spec.experts, 1) * one + (spec.n * dtype.itemsize if spec.bias else 0)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        product = products(spec.dtype).bind(spec.n, spec.k)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return product(x, weight["weight"], weight.get("bias"), out=out)

        return linear


def expert_name(number: int) -> str:
    """Of one expert's weight among the packed ones."""
    return f"weight.{number}"
