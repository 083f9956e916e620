"""Products with weights that are packed once: by the native kernels in bfloat16 and float32, otherwise by oneDNN
through torch. A plain row-major weight would be repacked, or read inefficiently, in every call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Packed, PackedEmbeddingSpec, Quantized, Reason
from tessera_cpu.activations import Emitted
from tessera_cpu.lookup import LookUp, bind_look_up
from tessera_cpu.native import BF16, FLOATS, library, varying
from tessera_cpu.native import Product as Task
from tessera_cpu.output import into

PANEL = 32  # outputs that are packed together
WORD = 4  # bytes of an output that lie together
KINDS = {torch.bfloat16: BF16, torch.float32: FLOATS}

Product = Callable[..., Any]
"""(x [T, k], packed, bias [n] or None, out=None) -> [T, n]. x is quantized if the product wants it."""


@dataclass(frozen=True)
class Stacked:
    """A native product whose weight is one of many."""

    # enum Kind of csrc/kernels.h
    kind: int
    # all but what a call says: addresses, and the number of rows
    task: NativeTask
    # bytes of one packed weight
    apart: int
    # where its scales are in it; None: it has none
    scales_at: int | None = None

    def point(self, task: Task, packed: Packed) -> None:
        """Sets a task's addresses to the first weight's."""
        task.packed = packed["weight"].data_ptr()
        if self.scales_at is not None:
            task.coding.scales = packed["weight"].data_ptr() + self.scales_at
        task.bias = packed["bias"].data_ptr() if "bias" in packed else None


class Products(ABC):
    @abstractmethod
    def pack(self, raw: Packed) -> Tensor:
        """Packs the weight [n, k], or the parts of its quantization scheme."""

    @abstractmethod
    def packed_bytes(self, n: int, k: int) -> int | None:
        """Bytes of the packed weight; None if it is not packed."""

    @abstractmethod
    def bind(self, n: int, k: int, *, in_order: bool = False) -> Product:
        """in_order: a row's products are added up in one order, whatever the number of rows, if varying() is None."""

    @abstractmethod
    def varying(self) -> Reason | None:
        """Why a row's result may depend on the number of rows, although it is bound with in_order."""

    def wants(self, k: int) -> ActSpec | None:
        """The quantization it wants for its input; None for unquantized."""
        return None

    def bind_gated(
        self, n: int, k: int, activation: int, emit: ActSpec | None = None, *, in_order: bool = False
    ) -> Product | None:
        """(x, packed [2n, k]) -> activation(the first n outputs) * the others; n is a multiple of PANEL. activation:
        enum Activation of csrc/kernels.h. emit: quantization of the result, used if why_plain() has no objection. None
        if the gate cannot be fused."""
        return None

    def bind_look_up(self, spec: PackedEmbeddingSpec) -> LookUp | None:
        """Looks up rows of the packed weight. None if only products can read it."""
        return None

    def stacked(self, n: int, k: int, *, in_order: bool = False) -> Stacked | None:
        """The weights of several experts, packed one behind the other. None if they are not packed like that."""
        return None


def products(dtype: str) -> Products:
    """The implementation that multiplies with unquantized weights of this dtype."""
    native, named = library(), getattr(torch, dtype)
    return NativeProducts(native, named) if native is not None and named in KINDS else OneDnnProducts(named)


class NativeProducts(Products):
    def __init__(self, native: Any, dtype: torch.dtype = torch.bfloat16) -> None:
        self.native, self.dtype, self.kind = native, dtype, KINDS[dtype]

    def pack(self, raw: Packed) -> Tensor:
        weight = rows_apart(raw["weight"])
        n, k = weight.shape
        packed = weight.new_empty(self._elements(n, k))
        size = self.dtype.itemsize
        self.native.tessera_cpu_pack(weight.data_ptr(), size * weight.stride(0), packed.data_ptr(), n, k, size)
        return packed

    def packed_bytes(self, n: int, k: int) -> int:
        return self.dtype.itemsize * self._elements(n, k)

    def _elements(self, n: int, k: int) -> int:
        of_word = WORD // self.dtype.itemsize
        return -(-n // PANEL) * PANEL * -(-k // of_word) * of_word

    def bind(self, n: int, k: int, *, in_order: bool = False) -> Product:
        return self._bound(self.native.tessera_cpu_linear, NativeTask(n=n, k=k, in_order=in_order))

    def varying(self) -> None:
        return None

    def bind_gated(
        self, n: int, k: int, activation: int, emit: ActSpec | None = None, *, in_order: bool = False
    ) -> Product:
        task = NativeTask(n=n, k=k, activation=activation, in_order=in_order)
        return self._bound(self.native.tessera_cpu_gate_up, task, emit)

    def bind_look_up(self, spec: PackedEmbeddingSpec) -> LookUp:
        return bind_look_up(self.native, self.kind, spec)

    def stacked(self, n: int, k: int, *, in_order: bool = False) -> Stacked:
        return Stacked(self.kind, NativeTask(n=n, k=k, in_order=in_order), self.packed_bytes(n, k))

    def _bound(self, call: Any, task: NativeTask, emit: ActSpec | None = None) -> Product:
        emitted = None if emit is None else Emitted(emit, task.n, task.rounded)

        def product(
            x: Tensor, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor | Quantized:
            x = rows_apart(x)
            result = result_of(len(x), task.n, out, self.dtype)
            task.bias = None if bias is None else bias.data_ptr()
            rounded = None if emitted is None else emitted.rows(len(x))
            call(self.kind, task.fill(x, packed, result))
            if rounded is not None:
                return rounded
            return result if out is None or out is result else out.copy_(result)

        return product


class NativeTask(Task):
    """A task reused for all calls at one place in the model; fields that do not change are set once."""

    def fill(self, x: Tensor, packed: Tensor, out: Tensor) -> NativeTask:
        """x [m, k], out [m, n]: rows may have any stride."""
        self.x, self.x_stride, self.packed = x.data_ptr(), x.stride(0), packed.data_ptr()
        self.out, self.out_stride, self.m = out.data_ptr(), out.stride(0), len(x)
        return self


class OneDnnProducts(Products):
    ROWS = 32  # the number of rows the packing is optimized for; others are nearly as fast

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.packable = dtype, _packable(dtype)

    def pack(self, raw: Packed) -> Tensor:
        if not self.packable:
            return raw["weight"]
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(raw["weight"], self.ROWS)
        return packed

    def packed_bytes(self, n: int, k: int) -> int | None:
        return n * k * self.dtype.itemsize if self.packable else None

    def varying(self) -> Reason | None:
        return varying(str(self.dtype).removeprefix("torch."))

    def bind(self, n: int, k: int, *, in_order: bool = False) -> Product:
        def packed_product(
            x: Tensor, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor:
            return into(torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""), out)

        def plain_product(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor:
            return into(torch.nn.functional.linear(x, weight, bias), out)

        return packed_product if self.packable else plain_product


def result_of(m: int, n: int, out: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A result [m, n] that a kernel can write to: out, if possible."""
    return torch.empty(m, n, dtype=dtype) if out is None or out.stride(-1) != 1 else out


def row_kernel(call: Any, task: Any) -> Callable[..., Tensor]:
    """A native kernel from each row to one of task.n elements: (x [T, any], out=None) -> [T, n], of one dtype. task:
    with all but what a call says, which is addresses and the number of rows."""

    def kernel(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        x = rows_apart(x)
        result = result_of(len(x), task.n, out, x.dtype)
        task.x, task.x_stride, task.rows = x.data_ptr(), x.stride(0), len(x)
        task.out, task.out_stride = result.data_ptr(), result.stride(0)
        call(task)
        return result if out is None or out is result else out.copy_(result)

    return kernel


def rows_apart(x: Tensor) -> Tensor:
    """x with contiguous elements in each row; rows may have any stride."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN supports products of this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
