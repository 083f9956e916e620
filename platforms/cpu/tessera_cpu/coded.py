"""Products with quantized weights and int8 activations, by the native kernels. A packed weight is one tensor of bytes:
the codes of the elements, then the records of their scales."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Packed, PackedEmbeddingSpec, Quantized
from tessera_cpu import native as kernels
from tessera_cpu.activations import INT8, Emitted, give
from tessera_cpu.lookup import LookUp, bind_look_up
from tessera_cpu.native import CODED, SPAN
from tessera_cpu.products import PANEL, NativeTask, Product, Products, Stacked, result_of, rows_apart

PART = 16
"""Elements of an activation that share a sum, unless a weight's groups are smaller: one size for all, so that products
of several kinds share an input."""

_RECORDS = MappingProxyType(
    {
        kernels.BY_ROW: (4, 0),
        kernels.BF16_SCALES: (2, 0),
        kernels.ZEROS: (3, 0),
        kernels.HALF: (2, 0),
        kernels.HALF_ZEROS: (3, 0),
        kernels.MINIMUMS: (4, 0),
        kernels.K_PAIRS: (20, 256),
        kernels.K_SIGNED: (18, 256),
        kernels.EXPONENTS: (1, 0),
        kernels.FRACTIONS: (1, 0),
    }
)
"""By scaling: the bytes of an output in a record, and the elements that it is for, if not those of a group."""


@dataclass(frozen=True)
class Form:
    """How a weight is packed: see Coding in csrc/kernels.h."""

    # enum Codes
    codes: int
    # enum Scaling
    scaling: int
    # the code of zero, unless scales come with minimums
    offset: int
    # elements that share a scale; 0 for all of a row
    group: int = 0
    # the codes of levels, 16 of them
    table: bytes = b""

    @property
    def unit(self) -> int:
        """Elements of k that share a scale of the weight and one of the activation."""
        return gcd(self.group or INT8.group, INT8.group)

    @property
    def part(self) -> int:
        return gcd(self.unit, PART)

    def coding(self, k: int) -> kernels.Coding:
        table = self.table or bytes(16)
        return kernels.Coding(self.codes, self.scaling, None, self.group or k, self.offset, (*table,))

    def bytes_of_codes(self, n: int, k: int) -> int:
        return _panels(n) * PANEL * -(-k // SPAN) * SPAN * kernels.BITS[self.codes] // 8

    def bytes_of_records(self, n: int, k: int) -> int:
        size, elements = _RECORDS[self.scaling]
        return _panels(n) * PANEL * size * (k // (elements or self.group or k))


class CodedProducts(Products):
    def __init__(self, native: Any, form: Form) -> None:
        self.native, self.form = native, form

    @abstractmethod
    def pack(self, raw: Packed) -> Tensor: ...

    def wants(self, k: int) -> ActSpec | None:
        return None if k % SPAN else dataclasses.replace(INT8, sums=self.form.part)

    def packed_bytes(self, n: int, k: int) -> int:
        return self.form.bytes_of_codes(n, k) + self.form.bytes_of_records(n, k)

    def varying(self) -> None:
        """Products of whole numbers are exact, and those of groups are added up in order."""

    def bind(self, n: int, k: int, *, in_order: bool = False) -> Product:
        return self._bound(self.native.tessera_cpu_linear, self._task(n, k), self.form.bytes_of_codes(n, k))

    def bind_gated(
        self, n: int, k: int, activation: int, emit: ActSpec | None = None, *, in_order: bool = False
    ) -> Product:
        task = self._task(n, k)
        task.activation = activation
        return self._bound(self.native.tessera_cpu_gate_up, task, self.form.bytes_of_codes(2 * n, k), emit)

    def bind_look_up(self, spec: PackedEmbeddingSpec) -> LookUp:
        n, k = spec.linear.n, spec.linear.k
        scales_at = self.form.bytes_of_codes(n, k)
        return bind_look_up(self.native, CODED, spec, self.form.coding(k), scales_at=scales_at)

    def stacked(self, n: int, k: int, *, in_order: bool = False) -> Stacked:
        return Stacked(CODED, self._task(n, k), self.packed_bytes(n, k), self.form.bytes_of_codes(n, k))

    def packed(self, codes: Tensor, stored: int, k: int, fields: Sequence[Tensor]) -> Tensor:
        """codes [n, ...]: a row for each output, as enum Stored of csrc/packing.h says. fields: of the records, each
        [n, records, numbers]."""
        n = len(codes)
        packed = torch.empty(self.packed_bytes(n, k), dtype=torch.uint8)
        self.put(packed, n, 0, codes, stored, k, fields)
        return packed

    def put(
        self, packed: Tensor, n: int, first: int, codes: Tensor, stored: int, k: int, fields: Sequence[Tensor]
    ) -> None:
        """Packs some outputs of n into their place: those from `first` on, a multiple of PANEL. The others as for
        packed()."""
        codes, form, panel = rows_apart(codes), self.form, first // PANEL
        at = packed.data_ptr() + panel * form.bytes_of_codes(PANEL, k)
        self.native.tessera_cpu_pack_codes(
            form.codes, stored, codes.data_ptr(), codes.stride(0) * codes.itemsize, at, len(codes), k
        )
        records = torch.cat([_by_panel(field) for field in fields], dim=-1).flatten()
        begin = form.bytes_of_codes(n, k) + panel * form.bytes_of_records(PANEL, k)
        packed[begin : begin + len(records)] = records

    def _task(self, n: int, k: int) -> NativeTask:
        form = self.form
        return NativeTask(n=n, k=k, coding=form.coding(k), unit=form.unit, x_group=INT8.group, x_part=form.part)

    def _bound(self, call: Any, task: NativeTask, scales_at: int, emit: ActSpec | None = None) -> Product:
        native = self.native
        emitted = None if emit is None else Emitted(emit, task.n, task.rounded)

        def product(
            x: Tensor | Quantized, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor | Quantized:
            x = x if isinstance(x, Quantized) else rows_apart(x)
            rows = x[0] if isinstance(x, Quantized) else x
            result = result_of(len(rows), task.n, out)
            task.bias = None if bias is None else bias.data_ptr()
            task.coding.scales = packed.data_ptr() + scales_at
            task.fill(rows, packed, result)
            given = give(native, x, task)
            rounded = None if emitted is None else emitted.rows(len(rows))
            call(CODED, task)
            del given
            if rounded is not None:
                return rounded
            return result if out is None or out is result else out.copy_(result)

        return product


def _by_panel(field: Tensor) -> Tensor:
    """[n, records, numbers] -> bytes [panels, records, numbers of all outputs, zeros where there is none]."""
    n, records, numbers = field.shape
    whole = field.new_zeros(_panels(n) * PANEL, records, numbers)
    whole[:n] = field
    panels = whole.view(-1, PANEL, records, numbers).permute(0, 2, 3, 1).contiguous()
    return panels.view(torch.uint8).flatten(2)


def _panels(n: int) -> int:
    return -(-n // PANEL)
