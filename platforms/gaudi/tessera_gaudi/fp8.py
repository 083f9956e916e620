"""Products in 8-bit floats (e4m3) by SynapseAI. Gaudi 3 multiplies the numbers of the OCP specification, which end at
448; on Gaudi 2 the same bytes end at 240, because the largest exponent is kept for infinity and NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    ActSpec,
    BoundOps,
    Device,
    Kernel,
    LinearSpec,
    Packed,
    QuantSpec,
    Reason,
    Scheme,
    VendorKernel,
)

PRODUCT = "hpu::fp8_gemm_v2"
PRODUCT_TAKES = (
    "A", "trans_A", "B", "trans_B", "D", "out_dtype", "A_scale_inv", "B_scale_inv", "bias", "accumulate",
)  # fmt: skip
CAST, CAST_TAKES = "hpu::cast_to_fp8_v2", ("input", "scale", "stochastic_rounding", "is_amax", "dtype")

FN, NARROW = "fp8_e4m3", "fp8_e4m3_to_240"
LARGEST: Mapping[str, float] = MappingProxyType({FN: 448.0, NARROW: 224.0})
"""By the dtype of a scheme: the largest number that is used. Half of 448 is rounded as 448 is, so that Gaudi 2 rounds
numbers as others do."""
_KINDS: Mapping[str, str] = MappingProxyType({"GAUDI2": NARROW, "GAUDI3": FN})
_STORED = torch.float8_e4m3fn
_LEAST = 1e-12  # a scale of a row of zeros


def on_device(scheme: Scheme, device_name: str) -> Scheme | Reason:
    """The scheme in the kind of fp8 that a device multiplies, or why it multiplies none."""
    specs: tuple[QuantSpec | None, ...] = (scheme.weight, scheme.activation)
    if not any(spec is not None and spec.dtype == FN for spec in specs):
        return scheme
    kind = next((kind for name, kind in _KINDS.items() if device_name.upper().startswith(name)), None)
    if kind is None:
        return f"{device_name} has no 8-bit floats"
    activation = scheme.activation
    if activation is not None and activation.dtype == FN:
        activation = replace(activation, dtype=kind)
    weight = replace(scheme.weight, dtype=kind) if scheme.weight.dtype == FN else scheme.weight
    return replace(scheme, weight=weight, activation=activation)


class Linear(VendorKernel[LinearSpec]):
    """op: fp8_gemm_v2. cast: cast_to_fp8_v2, or the reason why it is not there."""

    def __init__(self, op: Any, cast: Any) -> None:
        super().__init__(cast if isinstance(cast, str) else op)
        self.cast = cast

    def declines(self, spec: LinearSpec) -> Reason | None:
        scheme = spec.scheme
        if scheme is None:
            return "torch's own product"
        if spec.experts or spec.dtype != "bfloat16":
            return "no products of experts, and none but in bfloat16"
        if scheme.weight.dtype not in LARGEST or scheme.weight.granularity not in ("channel", "tensor"):
            return "no weights but in fp8 with a scale for each output or for all"
        activation = scheme.activation
        if activation is None or activation.dtype not in LARGEST or activation.granularity not in ("token", "tensor"):
            return "no activations but in fp8 with a scale for each token or for all"
        return None

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        """On Gaudi 2: half of each number, with scales twice as large, so that none is beyond 240."""
        packed = dict(raw)
        if spec.scheme is not None and spec.scheme.weight.dtype == NARROW:
            packed["weight"] = (raw["weight"].to(torch.bfloat16) / 2).to(_STORED)
            packed |= {name: raw[name] * 2 for name in ("scale", "input_scale") if name in raw}
        return Kernel.prepare(self, spec, packed, into)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        assert spec.scheme is not None
        assert spec.scheme.activation is not None
        activation, dtype = spec.scheme.activation, getattr(torch, spec.dtype)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k], weight {"weight": [n, k], "scale": [n] or [1], "bias": [n]} -> [T, n]."""
            data, scale = self._rounded(x, activation, weight.get("input_scale"))
            made: Tensor = self.op(
                A=data, trans_A=False, B=weight["weight"], trans_B=True, D=None, out_dtype=dtype, A_scale_inv=scale,
                B_scale_inv=weight["scale"].reshape(-1), bias=weight.get("bias"), accumulate=False,
            )  # fmt: skip
            return made if out is None else out.copy_(made)

        return linear

    def _rounded(self, x: Tensor, activation: ActSpec, static: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [T, k] -> fp8 [T, k], and scales [T, 1] or [1] float32."""
        largest = LARGEST[activation.dtype]
        if activation.static:
            assert static is not None, "a static activation comes with its scale"
            scale = static.reshape(1)
            x = x.clamp(-largest * scale, largest * scale)
        else:
            peaks = x.abs().amax(-1, keepdim=True) if activation.granularity == "token" else x.abs().amax().reshape(1)
            scale = peaks.float().clamp(min=_LEAST) / largest
        data: Tensor = self.cast(
            input=x, scale=scale.reciprocal(), stochastic_rounding=False, is_amax=False, dtype=_STORED
        )[0]
        return data, scale
