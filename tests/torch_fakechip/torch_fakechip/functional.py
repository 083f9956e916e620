"""A process group of the compiled device whose functional collectives compilers find in what they compile: importing
this registers their kernels, since those of torch want a group with backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from torch_fakechip.group import DeviceGroup


class FunctionalGroup(DeviceGroup):
    name = ""

    def _set_group_name(self, name: str) -> None:
        self.name = name

    @property
    def group_name(self) -> str:
        return self.name


def _kernel(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Registers a function as the kernel of the op of its name."""
    torch.library.impl(f"_c10d_functional::{function.__name__}", "PrivateUse1")(function)
    return function


@_kernel
def all_reduce(x: Tensor, reduce_op: str, group_name: Any) -> Tensor:
    assert reduce_op == "sum"
    total = x.clone()
    _resolve_process_group(group_name).allreduce([total])
    return total


@_kernel
def all_gather_into_tensor(x: Tensor, group_size: int, group_name: Any) -> Tensor:
    gathered = x.new_empty(len(x) * group_size, *x.shape[1:])
    _resolve_process_group(group_name).allgather([list(gathered.chunk(group_size))], [x])
    return gathered
