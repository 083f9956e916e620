"""RMS norm and the sum with the residual, each alone and one with the other: native in bfloat16, on torch's kernels
otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import AddNormSpec, AddSpec, BoundOps, Device, Kernel, NormAddSpec, NormSpec
from tessera_cpu.native import library
from tessera_cpu.output import into
from tessera_cpu.products import rows_apart

FEW = 4  # rows, for which what an operation takes to begin is most of what it takes


class RmsNorm(Kernel[NormSpec]):
    def supports(self, spec: NormSpec) -> str | None:
        return "emits no quantised activations" if spec.emit is not None else None

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        native = library()
        if native is not None and spec.dtype == "bfloat16":
            return _native_norm(native, spec)

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            if len(x) <= FEW:
                return into(_norm_of_few(spec, x, weight), out)
            return into(F.rms_norm(x, (spec.n,), weight, spec.eps), out)

        def offset_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """In float32: 1 + a small weight is mostly lost in fewer bits."""
            normed = F.rms_norm(x.float(), (spec.n,), weight.float() + spec.offset, spec.eps)
            return into(normed.to(x.dtype), out)

        return offset_norm if spec.offset else rms_norm


def _norm_of_few(spec: NormSpec, x: Tensor, weight: Tensor) -> Tensor:
    """torch's RMS norm is a dozen operations, its layer norm one; and the mean of x and -x together is 0, their
    variance the mean of squares."""
    both = F.layer_norm(torch.cat((x, -x), dim=-1), (2 * spec.n,), torch.cat((weight, weight)), None, spec.eps)
    return both[..., : spec.n]


def _native_norm(native: Any, spec: NormSpec) -> Any:
    call = native.tessera_cpu_add_norm

    def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
        """x [..., n]."""
        rows = rows_apart(x.reshape(-1, spec.n))
        result = torch.empty(x.shape, dtype=x.dtype) if out is None or not out.is_contiguous() else out
        call(
            rows.data_ptr(), rows.stride(0), None, 0, weight.data_ptr(), None, result.data_ptr(), len(rows), spec.n,
            spec.eps, spec.offset, 1.0,
        )  # fmt: skip
        return result if out is None or out is result else out.copy_(result)

    return rms_norm


class AddNorm(Kernel[AddNormSpec]):
    """The sum with the residual and its norm in one pass."""

    def supports(self, spec: AddNormSpec) -> str | None:
        if library() is None or spec.norm.dtype != "bfloat16":
            return "no native kernel"
        if spec.reduce is not None:
            return "no sum over ranks"
        return "emits no quantised activations" if spec.norm.emit is not None else None

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Any:
        call, norm, of = library().tessera_cpu_add_norm, ops.bind("rms_norm", spec.norm), spec.norm

        def add_norm(
            x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            if residual is None:
                return norm(x, weight, out=out), x
            x, residual = rows_apart(x), rows_apart(residual)
            total = torch.empty(x.shape, dtype=x.dtype)
            normed = torch.empty(x.shape, dtype=x.dtype) if out is None or not out.is_contiguous() else out
            call(
                x.data_ptr(), x.stride(0), residual.data_ptr(), residual.stride(0), weight.data_ptr(),
                total.data_ptr(), normed.data_ptr(), len(x), of.n, of.eps, of.offset, spec.multiplier,
            )  # fmt: skip
            return (normed if out is None or out is normed else out.copy_(normed)), total

        return add_norm


class Add(Kernel[AddSpec]):
    def supports(self, spec: AddSpec) -> str | None:
        return None

    def bind(self, spec: AddSpec, ops: BoundOps, device: Device) -> Any:
        native = library()
        if native is None or spec.dtype != "bfloat16":
            return torch.add
        call = native.tessera_cpu_add_norm

        def add(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
            a, b = rows_apart(a), rows_apart(b)
            result = torch.empty(a.shape, dtype=a.dtype) if out is None or not out.is_contiguous() else out
            call(
                a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), None, result.data_ptr(), None, len(a), spec.n,
                0.0, 0.0, 1.0,
            )  # fmt: skip
            return result if out is None or out is result else out.copy_(result)

        return add


class NormAdd(Kernel[NormAddSpec]):
    """The norm of a block's end, and its sum with the residual."""

    def supports(self, spec: NormAddSpec) -> str | None:
        if library() is None or spec.norm.dtype != "bfloat16":
            return "no native kernel"
        return "no sum over ranks" if spec.reduce is not None else None

    def bind(self, spec: NormAddSpec, ops: BoundOps, device: Device) -> Any:
        norm, add = ops.bind("rms_norm", spec.norm), ops.bind("add", AddSpec(spec.norm.n, spec.norm.dtype))

        def norm_add(x: Tensor, residual: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            result: Tensor = add(norm(x, weight), residual, out=out)
            return result

        return norm_add
