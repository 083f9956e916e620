"""Products by AMD's package aiter, where it is installed: weights and activations in int8 or fp8, with a scale for each
token and each output, by its kernels from AMD's Composable Kernel library."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Quantized, Reason, vendor_op
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.products import Linear
from tessera_triton.providers import Provider
from tessera_triton.quantize import Quantizer

PRODUCT, PRODUCT_TAKES = "aiter::gemm_a8w8", ("XQ", "WQ", "x_scale", "w_scale", "bias", "dtype")

_MADE_FOR = ("gfx942", "gfx950")
_MULTIPLE_N, _MULTIPLE_K = 8, 256  # outputs are stored by eight; tiles have up to 256 inputs, and no padding

log = logging.getLogger("tessera.rocm")


def provider() -> Provider:
    return Provider("aiter", "aiter.ops.gemm_op_a8w8", {})


def kernels(facts: DeviceFacts, launch: Launcher, package: Provider) -> dict[str, Kernel[Any]]:
    """The kernels in which the package takes part, by op; none if it is not there, cannot be used, or has none for this
    card. aiter gives its functions another signature, so its schema for torch is compared."""
    if facts.arch not in _MADE_FOR or package.absent is not None or package.broken is not None:
        return {}
    product = vendor_op(torch, PRODUCT, *PRODUCT_TAKES)
    if isinstance(product, str):
        log.warning("%s is not used for products: %s; install another version", package.name, product)
        return {}
    return {"linear": AiterOrTritonLinear(facts, launch)}


def why_triton(spec: LinearSpec, fp8: str | None) -> Reason | None:
    """Why the package does not compute a product. fp8: the card's, as in DeviceFacts."""
    scheme = spec.scheme
    if scheme is None or scheme.activation is None or scheme.parts["weight"].dtype not in ("int8", fp8):
        return "weights and activations are not both in int8 or in the card's fp8"
    weight, given = scheme.weight, scheme.activation
    if given.dtype != weight.dtype or weight.granularity != "channel" or given.granularity != "token":
        return "no scale for each token and each output"
    if given.static or given.sums or not weight.symmetric:
        return "activations have a given scale, or weights have zero points"
    if spec.dtype not in ("bfloat16", "float16") or scheme.parts["scale"].dtype != "float32":
        return f"results in {spec.dtype} and scales in {scheme.parts['scale'].dtype}"
    if spec.bias and weight.dtype != "int8":
        return "fp8 with a bias"  # the package's own tests leave it out
    if spec.experts or spec.n % _MULTIPLE_N or spec.k % _MULTIPLE_K:
        return f"not a multiple of {_MULTIPLE_N} outputs and of {_MULTIPLE_K} inputs"
    return None


@dataclass(frozen=True)
class AiterOrTritonLinear(Linear):
    """Products of int8 with int8, and of fp8 with fp8, by the package; all others by Triton or torch."""

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        if why_triton(spec, self.facts.fp8) is None:
            raw = {**raw, "weight": raw["weight"].contiguous()}
        return super().prepare(spec, raw, into)

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        if spec.scheme is None or spec.scheme.activation is None or why_triton(spec, self.facts.fp8) is not None:
            return super().bind(spec, ops, device)
        product, dtype = torch.ops.aiter.gemm_a8w8, getattr(torch, spec.dtype)
        quantized = Quantizer(self.launch, spec.k, spec.scheme.activation)

        def linear(x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            given = x if isinstance(x, Quantized) else quantized(x)
            if not len(given.data):
                return given.data.new_empty(0, spec.n, dtype=dtype) if out is None else out
            made: Tensor = product(
                XQ=given.data.contiguous(), WQ=weight["weight"], x_scale=given.scale, w_scale=weight["scale"][:, None],
                bias=weight.get("bias"), dtype=dtype,
            )  # fmt: skip
            return made if out is None else out.copy_(made)

        return linear
