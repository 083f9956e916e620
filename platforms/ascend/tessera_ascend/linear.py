"""Products with weights, which are kept in the format in which the matrix unit reads them: FRACTAL_NZ, tiles of 16 by
16 (16 by 32 for int8)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Reason, Scheme, VendorKernel

CAST, CAST_TAKES = "npu::npu_format_cast", ("input", "acl_format")
QUANTIZE, QUANTIZE_TAKES = "npu::npu_dynamic_quant", ("input",)
PRODUCT = "npu::npu_quant_matmul"
PRODUCT_TAKES = ("x1", "x2", "scale", "pertoken_scale", "output_dtype")

FRACTAL_NZ = 29
"""acl_format of weights."""
_TILE = 16
_INT8_TILE = 32


class Linear(VendorKernel[LinearSpec]):
    """op: npu_format_cast. quantize, product: npu_dynamic_quant and npu_quant_matmul, or the reason why one is not
    there."""

    def __init__(self, op: Any, quantize: Any, product: Any) -> None:
        super().__init__(op)
        self.quantize, self.product = quantize, product

    def declines(self, spec: LinearSpec) -> Reason | None:
        if spec.experts:
            return "no products of experts"
        if spec.dtype == "float32":
            return "no products in float32"
        if spec.scheme is None:
            return None if not (spec.n % _TILE or spec.k % _TILE) else f"not a multiple of {_TILE} outputs and inputs"
        return self._declines_int8(spec, spec.scheme)

    def _declines_int8(self, spec: LinearSpec, scheme: Scheme) -> Reason | None:
        activation = scheme.activation
        missing = next((one for one in (self.quantize, self.product) if isinstance(one, str)), None)
        if missing is not None:
            return missing
        if scheme.weight.dtype != "int8" or scheme.weight.granularity != "channel" or not scheme.weight.symmetric:
            return "no weights but in int8 with a scale for each output"
        if activation is None or activation.granularity != "token" or activation.static:
            return "no activations but in int8 with a scale for each token"
        if spec.n % _INT8_TILE or spec.k % _INT8_TILE:
            return f"not a multiple of {_INT8_TILE} outputs and inputs"
        return None

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        """In FRACTAL_NZ: [n, k], or [k, n] in int8."""
        weight = raw["weight"] if spec.scheme is None else raw["weight"].T.contiguous()
        packed = {**raw, "weight": self.op(input=weight, acl_format=FRACTAL_NZ)}
        return Kernel.prepare(self, spec, packed, into)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        return self._in_int8(spec) if spec.scheme is not None else _plain

    def _in_int8(self, spec: LinearSpec) -> Any:
        dtype = getattr(torch, spec.dtype)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k], weight {"weight": [k, n] int8, "scale": [n] float32, "bias": [n]} -> [T, n]."""
            data, scales = self.quantize(input=x)
            made: Tensor = self.product(
                x1=data, x2=weight["weight"], scale=weight["scale"], pertoken_scale=scales, output_dtype=dtype
            )
            result = made + weight["bias"] if spec.bias else made
            return result if out is None else out.copy_(result)

        return linear


def _plain(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """x [T, k], weight {"weight": [n, k], "bias": [n]} -> [T, n]."""
    made = F.linear(x, weight["weight"], weight.get("bias"))
    return made if out is None else out.copy_(made)
