"""int8 activations for products with quantized weights: one scale per row, and the sum of each group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Quantized, Reason
from tessera_cpu import native

WHOLE = 4  # elements multiplied at once; elements past the end of a row must be 0


def why_plain(emit: ActSpec | None, n: int, dtype: str) -> Reason | None:
    """Why rows of n cannot be emitted in this quantization; None if they can."""
    if emit is None:
        return None
    if native.library() is None or dtype != "bfloat16":
        return "only the native kernels emit quantised activations"
    if emit != ActSpec("int8", granularity="token", sums=emit.sums) or not emit.sums or n % emit.sums or n % WHOLE:
        return "this kernel emits int8 activations with one scale per row and sums of whole groups"
    return None


class Emitted:
    """Rows that a native kernel writes quantized. into: the part of the kernel's task that holds the addresses."""

    def __init__(self, emit: ActSpec, n: int, into: native.Int8Rows) -> None:
        self.n, self.groups, self.into = n, n // emit.sums, into
        into.group, into.stride = emit.sums, n

    def rows(self, number: int) -> Quantized:
        """Allocates the result of the next call, and sets its addresses in the task."""
        data = torch.empty(number, self.n, dtype=torch.int8)
        scale = torch.empty(number, 1)
        sums = torch.empty(number, self.groups, dtype=torch.int32)
        into = self.into
        into.elements, into.scale, into.sums = data.data_ptr(), scale.data_ptr(), sums.data_ptr()
        return Quantized(data, scale, sums)


def give(library: Any, x: Tensor | Quantized, task: native.Product) -> Tensor | None:
    """Sets a task's input to x [m, k]: bf16 rows of any stride, or rows quantized as the product wants them. The task's
    k and group must be set. Keep the return value until the call has finished."""
    if not isinstance(x, Quantized):
        return _quantise(library, x, task)
    assert x.sums is not None
    task.x, task.x_stride = x.data.data_ptr(), x.data.stride(0)
    task.x_scale, task.x_sum = x.scale.data_ptr(), x.sums.data_ptr()
    return None


def _quantise(library: Any, x: Tensor, task: native.Product) -> Tensor:
    """Quantizes the rows. Returns the memory that holds the rows, their scales and sums."""
    m, k, group = len(x), task.k, task.group
    stride, groups = -(-k // WHOLE) * WHOLE, k // group
    room = torch.empty(m * (4 + 4 * groups + stride), dtype=torch.uint8)
    scale = room.data_ptr()
    sums = scale + 4 * m
    elements = sums + 4 * m * groups
    library.tessera_cpu_quantise(x.data_ptr(), x.stride(0), elements, stride, scale, sums, m, k, group)
    task.x, task.x_stride, task.x_scale, task.x_sum = elements, stride, scale, sums
    return room
