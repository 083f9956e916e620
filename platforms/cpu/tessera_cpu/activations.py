"""int8 activations for products with quantized weights: a scale for each group of a row, and the sum of each part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import ActSpec, Quantized, Reason
from tessera_cpu import native
from tessera_cpu.native import SPAN

INT8 = ActSpec("int8", granularity="group", group=32)
"""What the kernels multiply with. A product says what sums it wants beside it."""


def why_plain(emit: ActSpec | None, n: int, dtype: str) -> Reason | None:
    """Why rows of n cannot be emitted in this quantization; None if they can."""
    if emit is None:
        return None
    if native.library() is None or dtype != "bfloat16":
        return "only the native kernels emit quantised activations"
    right = emit == ActSpec("int8", granularity="group", group=emit.group, sums=emit.sums)
    if not right or emit.group % 16 or not emit.sums or emit.group % emit.sums or n % emit.sums or n % SPAN:
        return "this kernel emits int8 activations with scales and sums of groups, if these are whole"
    return None


class Emitted:
    """Rows that a native kernel writes quantized. into: the part of the kernel's task that holds the addresses."""

    def __init__(self, emit: ActSpec, n: int, into: native.Int8Rows) -> None:
        self.n, self.group, self.into = n, emit.group, into
        self.groups, self.parts = -(-n // emit.group), n // emit.sums
        into.group, into.part, into.stride = emit.group, emit.sums, n

    def rows(self, number: int) -> Quantized:
        """Allocates the result of the next call, and sets its addresses in the task."""
        data = torch.empty(number, self.n, dtype=torch.int8)
        scale = torch.empty(number, self.groups)
        sums = torch.empty(number, self.parts, dtype=torch.int32)
        into = self.into
        into.elements, into.scale, into.sums = data.data_ptr(), scale.data_ptr(), sums.data_ptr()
        return Quantized(data, scale, sums, self.group)


def give(library: Any, x: Tensor | Quantized, task: native.Product) -> Tensor | None:
    """Sets a task's input to x [m, k]: bf16 rows of any stride, or rows quantized as the product wants them. The task's
    k and its groups and parts of x must be set. Keep the return value until the call has finished."""
    if not isinstance(x, Quantized):
        return _quantise(library, x, task)
    assert x.sums is not None
    assert x.group == task.x_group
    task.x, task.x_stride = x.data.data_ptr(), x.data.stride(0)
    task.x_scale, task.x_sum = x.scale.data_ptr(), x.sums.data_ptr()
    return None


def _quantise(library: Any, x: Tensor, task: native.Product) -> Tensor:
    """Quantizes the rows. Returns the memory that holds the rows, their scales and sums."""
    m, k = len(x), task.k
    stride, groups, parts = -(-k // SPAN) * SPAN, -(-k // task.x_group), -(-k // task.x_part)
    room = torch.empty(m * (4 * groups + 4 * parts + stride), dtype=torch.uint8)
    scale = room.data_ptr()
    sums = scale + 4 * m * groups
    elements = sums + 4 * m * parts
    into = native.Int8Rows(elements, stride, scale, sums, task.x_group, task.x_part)
    library.tessera_cpu_quantise(x.data_ptr(), x.stride(0), into, m, k)
    task.x, task.x_stride, task.x_scale, task.x_sum = elements, stride, scale, sums
    return room
