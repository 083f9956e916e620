"""RMS norm, layer norm, addition of the residual, and these fused with it: native in bfloat16, layer norms in float32
too, otherwise with torch. Native RMS norms can emit int8 rows for a product that wants them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    AddLayerNormSpec,
    AddNormSpec,
    AddSpec,
    BoundOps,
    Device,
    Kernel,
    LayerNormSpec,
    NormAddSpec,
    NormSpec,
    Quantized,
    Reason,
)
from tessera_cpu import native
from tessera_cpu.activations import Emitted, why_plain
from tessera_cpu.output import into
from tessera_cpu.products import rows_apart

FEW = 4  # rows, for which the overhead of an operation dominates


class RmsNorm(Kernel[NormSpec]):
    def supports(self, spec: NormSpec) -> Reason | None:
        return why_plain(spec.emit, spec.n, spec.dtype)

    def batch_invariant(self, spec: NormSpec) -> Reason | None:
        return native.varying(spec.dtype)

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype == "bfloat16":
            return _native_norm(library, spec)

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            if len(x) <= FEW:
                return into(_norm_of_few(spec, x, weight), out)
            return into(F.rms_norm(x, (spec.n,), weight, spec.eps), out)

        def offset_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            """Computes in float32, since 1 + a small weight loses most of the weight's bits in bfloat16."""
            normed = F.rms_norm(x.float(), (spec.n,), weight.float() + spec.offset, spec.eps)
            return into(normed.to(x.dtype), out)

        return offset_norm if spec.offset else rms_norm


def _norm_of_few(spec: NormSpec, x: Tensor, weight: Tensor) -> Tensor:
    """torch's RMS norm is a dozen operations, its layer norm only one. The mean of x and -x together is 0, and their
    variance is the mean of squares, so layer norm computes the RMS norm."""
    both = F.layer_norm(torch.cat((x, -x), dim=-1), (2 * spec.n,), torch.cat((weight, weight)), None, spec.eps)
    return both[..., : spec.n]


class _SummedRows:
    """The rows of a kernel that adds a residual to x and normalizes the sum. task: AddNorm or LayerNorm, bound to one
    place in the model."""

    def __init__(self, call: Any, task: Any) -> None:
        self.call, self.task = call, task

    def take(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """x, residual [m, n], rows of any stride -> where the sum will be; x itself if there is no residual."""
        task, total = self.task, x
        task.x, task.x_stride, task.rows = x.data_ptr(), x.stride(0), x.size(0)
        if residual is None:
            task.residual = task.sum = None
        else:
            total = x.new_empty(task.rows, task.n)
            task.residual, task.residual_stride = residual.data_ptr(), residual.stride(0)
            task.sum = total.data_ptr()
        return total

    def normed(self, x: Tensor, out: Tensor | None) -> Tensor:
        task = self.task
        result = x.new_empty(task.rows, task.n) if out is None or not out.is_contiguous() else out
        task.out = result.data_ptr()
        self.call(task)
        return result if out is None or out is result else out.copy_(result)


class _Norming(_SummedRows):
    def __init__(self, library: Any, spec: NormSpec, multiplier: float = 1.0) -> None:
        task = native.AddNorm(n=spec.n, eps=spec.eps, offset=spec.offset, multiplier=multiplier)
        super().__init__(library.tessera_cpu_add_norm, task)
        self.emitted = None if spec.emit is None else Emitted(spec.emit, spec.n, task.rounded)

    def __call__(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """The normed sum, and the sum."""
        total, self.task.weight = self.take(x, residual), weight.data_ptr()
        if self.emitted is None:
            return self.normed(x, out), total
        rows = self.emitted.rows(len(x))
        self.call(self.task)
        return rows, total


def _native_norm(library: Any, spec: NormSpec) -> Any:
    norming = _Norming(library, spec)

    def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor | Quantized:
        """x [..., n]; must be [T, n] if the result is quantized."""
        flat = out.view(-1, spec.n) if out is not None and out.is_contiguous() else None
        normed, _ = norming(rows_apart(x.reshape(-1, spec.n)), None, weight, flat)
        if isinstance(normed, Quantized):
            return normed
        if out is None:
            return normed.view(x.shape)
        return out if flat is not None else out.copy_(normed.view(x.shape))

    return rms_norm


class AddNorm(Kernel[AddNormSpec]):
    """The sum with the residual, and its norm, in one pass."""

    def supports(self, spec: AddNormSpec) -> Reason | None:
        if native.library() is None or spec.norm.dtype != "bfloat16":
            return "no native kernel"
        if spec.reduce is not None:
            return "no sum over ranks"
        return why_plain(spec.norm.emit, spec.norm.n, spec.norm.dtype)

    def batch_invariant(self, spec: AddNormSpec) -> None:
        return None

    def bind(self, spec: AddNormSpec, ops: BoundOps, device: Device) -> Any:
        norm, norming = ops.bind("rms_norm", spec.norm), _Norming(native.library(), spec.norm, spec.multiplier)

        def add_norm(
            x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None
        ) -> tuple[Tensor | Quantized, Tensor]:
            if residual is None:
                return norm(x, weight, out=out), x
            return norming(rows_apart(x), rows_apart(residual), weight, out)

        return add_norm


class Add(Kernel[AddSpec]):
    def supports(self, spec: AddSpec) -> Reason | None:
        return None

    def batch_invariant(self, spec: AddSpec) -> None:
        return None

    def bind(self, spec: AddSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is None or spec.dtype not in native.ENTRIES:
            return torch.add
        call = library.tessera_cpu_layer_norm
        task = native.LayerNorm(n=spec.n, number=native.ENTRIES[spec.dtype])

        def add(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
            a, b = rows_apart(a), rows_apart(b)
            rows = a.size(0)
            result = a.new_empty(rows, spec.n) if out is None or not out.is_contiguous() else out
            task.x, task.x_stride, task.rows = a.data_ptr(), a.stride(0), rows
            task.residual, task.residual_stride, task.sum = b.data_ptr(), b.stride(0), result.data_ptr()
            call(task)
            return result if out is None or out is result else out.copy_(result)

        return add


class NormAdd(Kernel[NormAddSpec]):
    """The norm at the end of a block, and its sum with the residual."""

    def supports(self, spec: NormAddSpec) -> Reason | None:
        if native.library() is None or spec.norm.dtype != "bfloat16":
            return "no native kernel"
        return "no sum over ranks" if spec.reduce is not None else None

    def batch_invariant(self, spec: NormAddSpec) -> None:
        return None

    def bind(self, spec: NormAddSpec, ops: BoundOps, device: Device) -> Any:
        norm, add = ops.bind("rms_norm", spec.norm), ops.bind("add", AddSpec(spec.norm.n, spec.norm.dtype))

        def norm_add(x: Tensor, residual: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            result: Tensor = add(norm(x, weight), residual, out=out)
            return result

        return norm_add


class LayerNorm(Kernel[LayerNormSpec]):
    def supports(self, spec: LayerNormSpec) -> None:
        return None

    def batch_invariant(self, spec: LayerNormSpec) -> Reason | None:
        return native.varying_entries(spec.dtype)

    def bind(self, spec: LayerNormSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is not None and spec.dtype in native.ENTRIES:
            return _native_layer_norm(library, spec)

        def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
            return into(F.layer_norm(x, (spec.n,), weight, bias, spec.eps), out)

        return layer_norm


class _LayerNorming(_SummedRows):
    def __init__(self, library: Any, spec: LayerNormSpec) -> None:
        task = native.LayerNorm(n=spec.n, eps=spec.eps, number=native.ENTRIES[spec.dtype])
        super().__init__(library.tessera_cpu_layer_norm, task)

    def __call__(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The normed sum, and the sum."""
        total, self.task.weight, self.task.bias = self.take(x, residual), weight.data_ptr(), bias.data_ptr()
        return self.normed(x, out), total


def _native_layer_norm(library: Any, spec: LayerNormSpec) -> Any:
    norming = _LayerNorming(library, spec)

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
        """x [..., n]"""
        flat = out.view(-1, spec.n) if out is not None and out.is_contiguous() else None
        normed, _ = norming(rows_apart(x.reshape(-1, spec.n)), None, weight, bias, flat)
        if out is None:
            return normed.view(x.shape)
        return out if flat is not None else out.copy_(normed.view(x.shape))

    return layer_norm


class AddLayerNorm(Kernel[AddLayerNormSpec]):
    """The sum with the residual, and its layer norm, in one pass."""

    def supports(self, spec: AddLayerNormSpec) -> Reason | None:
        if native.library() is None or spec.norm.dtype not in native.ENTRIES:
            return "no native kernel"
        return "no sum over ranks" if spec.reduce is not None else None

    def batch_invariant(self, spec: AddLayerNormSpec) -> None:
        return None

    def bind(self, spec: AddLayerNormSpec, ops: BoundOps, device: Device) -> Any:
        norming = _LayerNorming(native.library(), spec.norm)

        def add_layer_norm(
            x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            residual = None if residual is None else rows_apart(residual)
            return norming(rows_apart(x), residual, weight, bias, out)

        return add_layer_norm
