"""Products by the package vllm-xpu-kernels, whose int4 products are oneDNN's, where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Reason, vendor_op
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.lookup import PackedEmbedding
from tessera_triton.products import Linear
from tessera_triton.providers import Provider

INT4_PRODUCT, INT4_PRODUCT_TAKES = (
    "_xpu_C::int4_gemm_w4a16",
    ("A", "B", "bias", "B_scale", "B_zp", "group_size", "g_idx"),
)

_WORD = 8  # numbers of four bits
_ZERO = 8  # what stands for 0 in a weight without zero points
_GROUPS_OF = 32  # inputs; groups are a multiple

log = logging.getLogger("tessera.xpu")


def provider() -> Provider:
    return Provider("vllm_xpu_kernels", "vllm_xpu_kernels._xpu_C", {})


def kernels(facts: DeviceFacts, launch: Launcher, package: Provider) -> dict[str, Kernel[Any]]:
    """The kernels in which the package takes part, by op; none if it is not there or cannot be used."""
    if package.absent is not None or package.broken is not None:
        return {}
    product = vendor_op(torch, INT4_PRODUCT, *INT4_PRODUCT_TAKES)
    if isinstance(product, str):
        log.warning("%s is not used: %s; install version 0.1.16", package.name, product)
        return {}
    linear = VllmOrTritonLinear(facts, launch)
    lookup = PackedEmbedding(facts, launch, linear, packed_elsewhere=lambda spec: why_triton(spec) is None)
    return {"linear": linear, "packed_embedding": lookup}


def why_triton(spec: LinearSpec) -> Reason | None:
    """Why the package does not compute a product."""
    scheme = spec.scheme
    if scheme is None or scheme.weight.dtype != "int4" or not scheme.weight.symmetric:
        return "no weights in int4 without zero points"
    if scheme.activation is not None:
        return "activations are quantized"
    if spec.dtype not in ("bfloat16", "float16") or scheme.parts["scale"].dtype != spec.dtype:
        return f"activations in {spec.dtype} and scales in {scheme.parts['scale'].dtype}"
    if spec.experts or spec.n % _WORD or scheme.weight.group % _GROUPS_OF or spec.k % (scheme.weight.group or 1):
        return f"not a multiple of {_WORD} outputs and of {_GROUPS_OF} inputs that share a scale"
    return None


@dataclass(frozen=True)
class VllmOrTritonLinear(Linear):
    """Products with weights in int4 without zero points, of activations as they are, by the package; all others by
    Triton."""

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        """Words of eight numbers [n, k / 8] int32, as two per byte already are; scales [k / group, n]."""
        if why_triton(spec) is not None:
            return super().prepare(spec, raw, into)
        packed = {**raw, "weight": raw["weight"].contiguous().view(torch.int32), "scale": raw["scale"].T.contiguous()}
        return Kernel.prepare(self, spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        return super().packed_bytes(spec) if why_triton(spec) is not None else None

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        if spec.scheme is None or why_triton(spec) is not None:
            return super().bind(spec, ops, device)
        product, group = torch.ops._xpu_C.int4_gemm_w4a16, spec.scheme.weight.group  # noqa: SLF001  # its public name
        zero = torch.full((1,), _ZERO, dtype=torch.int8, device=device.target)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            made: Tensor = product(
                A=x.contiguous(), B=weight["weight"].T, bias=weight.get("bias"), B_scale=weight["scale"], B_zp=zero,
                group_size=group, g_idx=None,
            )  # fmt: skip
            return made if out is None else out.copy_(made)

        return linear
