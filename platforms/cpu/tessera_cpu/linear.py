"""The op linear, and the packing of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, BoundOps, Device, Kernel, LinearSpec, Packed, Quantized, Reason
from tessera_cpu.blocks import BlockProducts
from tessera_cpu.native import library
from tessera_cpu.products import Product, Products, products
from tessera_cpu.quantized import QuantizedProducts, served


def products_of(spec: LinearSpec) -> Products | Reason:
    """The implementation that multiplies with a linear's weight, or why there is none."""
    if spec.scheme is None:
        return products(spec.dtype)
    native = library()
    if native is None:
        return "quantized weights need the native kernels, which are not used"
    if spec.dtype != "bfloat16":
        return f"quantized weights take activations of bfloat16, not {spec.dtype}"
    scheme = served(spec.scheme)
    if isinstance(scheme, str):
        return scheme
    if scheme != spec.scheme:
        return "quantized weights take activations of int8"
    return (QuantizedProducts if scheme.weight.encoding is None else BlockProducts)(native, scheme)


def taken(spec: LinearSpec) -> Products:
    """products_of() for a spec that Linear supports."""
    found = products_of(spec)
    assert not isinstance(found, str), found
    return found


def product_of(spec: LinearSpec, *, in_order: bool = False) -> Product:
    """The product with a weight that Linear packed; for experts, with one expert's weight."""
    return taken(spec).bind(spec.n, spec.k, in_order=in_order)


class Linear(Kernel[LinearSpec]):
    """x W^T + b. Experts' weights are packed one by one: one behind the other if that is native, otherwise each under
    the name expert_name() gives."""

    def supports(self, spec: LinearSpec) -> Reason | None:
        found = products_of(spec)
        return found if isinstance(found, str) else None

    def batch_invariant(self, spec: LinearSpec) -> Reason | None:
        return taken(spec).varying()

    def wants(self, spec: LinearSpec) -> ActSpec | None:
        """The input's quantization. None for experts, which pick their rows from everyone's."""
        return None if spec.experts else taken(spec).wants(spec.k)

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        parts = {name: tensor for name, tensor in raw.items() if name != "bias"}
        packed = _experts(spec, parts) if spec.experts else {"weight": taken(spec).pack(parts)}
        if spec.bias:
            packed["bias"] = raw["bias"]
        return super().prepare(spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        one = taken(spec).packed_bytes(spec.n, spec.k)
        if one is None:
            return None
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return max(spec.experts, 1) * (one + (spec.n * dtype.itemsize if spec.bias else 0))

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        product = product_of(spec, in_order=ops.batch_invariant)

        def linear(x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return product(x, weight["weight"], weight.get("bias"), out=out)

        return linear


def _experts(spec: LinearSpec, parts: Packed) -> dict[str, Tensor]:
    own = taken(spec)
    packed = (own.pack({name: tensor[number] for name, tensor in parts.items()}) for number in range(spec.experts))
    if own.stacked(spec.n, spec.k) is None:
        return {expert_name(number): one for number, one in enumerate(packed)}
    first = next(packed)
    whole = first.new_empty(spec.experts, *first.shape)
    whole[0] = first
    for number, one in enumerate(packed, 1):
        whole[number] = one
    return {"weight": whole}


def expert_name(number: int) -> str:
    """The name of one expert's packed weight."""
    return f"weight.{number}"
