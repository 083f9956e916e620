"""Products with weights that are packed once: by the native kernels in bfloat16, by oneDNN through torch otherwise. A
plain row-major weight would be repacked, or read badly, in every call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tessera.platform import Packed
from tessera_cpu.native import BF16, library
from tessera_cpu.native import Product as Task
from tessera_cpu.output import into

PANEL = 32  # outputs that are packed together

Product = Callable[..., Tensor]
"""(x [T, k], packed, bias [n] or None, out=None) -> [T, n]."""


class Products(ABC):
    @abstractmethod
    def pack(self, raw: Packed) -> Tensor:
        """The weight [n, k], or the parts of its scheme, as the product takes it."""

    @abstractmethod
    def packed_bytes(self, n: int, k: int) -> int | None:
        """None: as they are."""

    @abstractmethod
    def bind(self, n: int, k: int) -> Product: ...

    def bind_gated(self, n: int, k: int, activation: int) -> Product | None:
        """(x, packed [2n, k]) -> activation(the first n outputs) * the others, n a multiple of PANEL. activation: enum
        Activation of csrc/kernels.h. None: not in one."""
        return None


def products(dtype: str) -> Products:
    """Who multiplies weights of this dtype."""
    native = library()
    if native is not None and dtype == "bfloat16":
        return NativeProducts(native)
    return OneDnnProducts(getattr(torch, dtype))


class NativeProducts(Products):
    def __init__(self, native: Any) -> None:
        self.native = native

    def pack(self, raw: Packed) -> Tensor:
        weight = raw["weight"].contiguous()
        n, k = weight.shape
        packed = weight.new_empty(self._elements(n, k))
        self.native.tessera_cpu_pack(BF16, weight.data_ptr(), k, packed.data_ptr(), n, k)
        return packed

    def packed_bytes(self, n: int, k: int) -> int:
        return 2 * self._elements(n, k)

    def _elements(self, n: int, k: int) -> int:
        return -(-n // PANEL) * PANEL * -(-k // 2) * 2

    def bind(self, n: int, k: int) -> Product:
        return self._bound(self.native.tessera_cpu_linear, NativeTask(n=n, k=k))

    def bind_gated(self, n: int, k: int, activation: int) -> Product:
        return self._bound(self.native.tessera_cpu_gate_up, NativeTask(n=n, k=k, activation=activation))

    def _bound(self, call: Any, task: NativeTask) -> Product:
        def product(x: Tensor, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
            x = rows_apart(x)
            result = result_of(x, task.n, out)
            task.bias = None if bias is None else bias.data_ptr()
            call(BF16, task.of(x, packed, result))
            return result if out is None or out is result else out.copy_(result)

        return product


class NativeTask(Task):
    """One for all calls of a place, whose fields that stay are set once."""

    def of(self, x: Tensor, packed: Tensor, out: Tensor) -> NativeTask:
        """x [m, k], out [m, n]: rows may have any stride."""
        self.x, self.x_stride, self.packed = x.data_ptr(), x.stride(0), packed.data_ptr()
        self.out, self.out_stride, self.m = out.data_ptr(), out.stride(0), len(x)
        return self


class OneDnnProducts(Products):
    ROWS = 32  # the packing is made for products of so many rows; it serves others nearly as well

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.packable = dtype, _packable(dtype)

    def pack(self, raw: Packed) -> Tensor:
        if not self.packable:
            return raw["weight"]
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(raw["weight"], self.ROWS)
        return packed

    def packed_bytes(self, n: int, k: int) -> int | None:
        return n * k * self.dtype.itemsize if self.packable else None

    def bind(self, n: int, k: int) -> Product:
        def packed_product(
            x: Tensor, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor:
            return into(torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], ""), out)

        def plain_product(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor:
            return into(torch.nn.functional.linear(x, weight, bias), out)

        return packed_product if self.packable else plain_product


def result_of(x: Tensor, n: int, out: Tensor | None) -> Tensor:
    """[m, n], where a kernel can write: out, if it can."""
    return x.new_empty(len(x), n) if out is None or out.stride(-1) != 1 else out


def rows_apart(x: Tensor) -> Tensor:
    """x, whose rows may have any stride and whose elements follow each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies it on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
