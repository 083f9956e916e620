"""Products with int8 or int4 weights and int8 activations, by the native kernels. A packed weight is one tensor of
bytes: the elements, then the scales."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Packed, PackedEmbeddingSpec, Quantized, QuantSpec, Reason, Scheme, TensorSpec
from tessera_cpu.activations import WHOLE, Emitted, give
from tessera_cpu.lookup import LookUp, bind_look_up
from tessera_cpu.native import INT4, INT8
from tessera_cpu.products import PANEL, NativeTask, Product, Products, result_of, rows_apart

_ACTIVATIONS = ActSpec("int8", granularity="token")


def served(scheme: Scheme) -> Scheme | Reason:
    """The scheme with quantized activations, which the kernels need, or why it is not supported."""
    weight = scheme.weight
    if scheme.activation not in (None, _ACTIVATIONS):
        return "this kernel takes int8 activations with one scale per token"
    if weight == QuantSpec("int8", "channel"):
        parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    elif weight == QuantSpec("int4", "group", weight.group, scale_dtype="bfloat16") and weight.group % 8 == 0:
        parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, weight.group))}
    else:
        return (
            "this kernel takes int8 weights with one float32 scale per row, or int4 weights with one bfloat16 scale "
            "per group of a multiple of 8 inputs"
        )
    if dict(scheme.parts) != parts:
        return "its parts are stored in another way"
    return dataclasses.replace(scheme, activation=_ACTIVATIONS)


class QuantizedProducts(Products):
    """scheme: a result of served()."""

    def __init__(self, native: Any, scheme: Scheme) -> None:
        self.native, self.group = native, scheme.weight.group
        self.kind = INT4 if self.group else INT8

    def wants(self, k: int) -> ActSpec | None:
        return None if k % WHOLE else dataclasses.replace(_ACTIVATIONS, sums=self.group or k)

    def pack(self, raw: Packed) -> Tensor:
        stored, scale = rows_apart(raw["weight"]), raw["scale"]
        n, k = len(stored), stored.shape[1] * (2 if self.kind == INT4 else 1)
        packed = torch.empty(self.packed_bytes(n, k), dtype=torch.uint8)
        self.native.tessera_cpu_pack(self.kind, stored.data_ptr(), stored.stride(0), packed.data_ptr(), n, k)
        self._put_scales(packed[self._bytes_of_elements(n, k) :], scale)
        return packed

    def _put_scales(self, room: Tensor, scale: Tensor) -> None:
        room[-room.numel() // _panels(len(scale)) :] = 0  # the last panel, which may not be full
        if self.kind == INT8:
            room.view(torch.float32)[: len(scale)] = scale
            return
        groups = scale.shape[1]
        panels = room.view(torch.bfloat16).view(-1, groups, PANEL).transpose(1, 2)
        whole = len(scale) // PANEL
        panels[:whole] = scale[: whole * PANEL].view(whole, PANEL, groups)
        panels[whole:, : len(scale) % PANEL] = scale[whole * PANEL :]

    def packed_bytes(self, n: int, k: int) -> int:
        rows = _panels(n) * PANEL
        return self._bytes_of_elements(n, k) + rows * (2 * k // self.group if self.kind == INT4 else 4)

    def _bytes_of_elements(self, n: int, k: int) -> int:
        return _panels(n) * PANEL * (k // 2 if self.kind == INT4 else -(-k // 4) * 4)

    def varying(self) -> None:
        """Products of whole numbers are exact, and those of groups are added up in order."""

    def bind(self, n: int, k: int, *, in_order: bool = False) -> Product:
        return self._bound(self.native.tessera_cpu_linear, self._task(n, k), self._bytes_of_elements(n, k))

    def bind_gated(
        self, n: int, k: int, activation: int, emit: ActSpec | None = None, *, in_order: bool = False
    ) -> Product:
        task = self._task(n, k)
        task.activation = activation
        return self._bound(self.native.tessera_cpu_gate_up, task, self._bytes_of_elements(2 * n, k), emit)

    def bind_look_up(self, spec: PackedEmbeddingSpec) -> LookUp:
        scales_at = self._bytes_of_elements(spec.linear.n, spec.linear.k)
        return bind_look_up(self.native, self.kind, spec, group=self.group, scales_at=scales_at)

    def _task(self, n: int, k: int) -> NativeTask:
        return NativeTask(n=n, k=k, group=self.group or k)

    def _bound(self, call: Any, task: NativeTask, scales_at: int, emit: ActSpec | None = None) -> Product:
        native, kind = self.native, self.kind
        emitted = None if emit is None else Emitted(emit, task.n, task.rounded)

        def product(
            x: Tensor | Quantized, packed: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
        ) -> Tensor | Quantized:
            x = x if isinstance(x, Quantized) else rows_apart(x)
            rows = x[0] if isinstance(x, Quantized) else x
            result = result_of(len(rows), task.n, out)
            task.bias = None if bias is None else bias.data_ptr()
            task.scale = packed.data_ptr() + scales_at
            task.fill(rows, packed, result)
            given = give(native, x, task)
            rounded = None if emitted is None else emitted.rows(len(rows))
            call(kind, task)
            del given
            if rounded is not None:
                return rounded
            return result if out is None or out is result else out.copy_(result)

        return product


def _panels(n: int) -> int:
    return -(-n // PANEL)
