"""Persistent device tensors by name, so that a shape's launches see the same addresses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Device


class DeviceBuffers:
    """sizes: elements of the names whose shapes vary from launch to launch, each a view of the start of one tensor. Any
    other name has a tensor for each shape that it is asked for in, so that none ever moves."""

    def __init__(self, device: Device, sizes: dict[str, int] | None = None) -> None:
        self.device, self.sizes = device, sizes or {}
        self._flat: dict[tuple[str, str, int], Tensor] = {}
        self._newest: dict[str, tuple[Sequence[int], str, Tensor]] = {}

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        newest = self._newest.get(name)
        if newest is None or newest[:2] != (shape, dtype):
            newest = self._newest[name] = (shape, dtype, self._made(name, shape, dtype))
        return newest[2]

    def _made(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        number = prod(shape)
        size = self.sizes.get(name, number)
        assert number <= size, (name, shape, size)
        flat = self._flat.get((name, dtype, size))
        if flat is None:
            flat = torch.empty(size, dtype=torch_dtype(dtype), device=self.device.target)
            self._flat[name, dtype, size] = flat
        return flat[:number].view(*shape)

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        host = np.ascontiguousarray(values)
        return self.get(name, host.shape, dtype).copy_(torch.from_numpy(host))
