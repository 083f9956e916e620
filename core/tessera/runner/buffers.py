"""Persistent device tensors by name, so that a shape's launches see the same addresses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.platform.platform import Device
from tessera.reference.dtypes import torch_dtype


class DeviceBuffers:
    """Each name has one flat tensor, as large as `sizes` says or as was asked for first; it grows only for names
    without a declared size."""

    def __init__(self, device: Device, sizes: dict[str, int] | None = None) -> None:
        self.device, self.sizes = device, sizes or {}
        self._flat: dict[tuple[str, str], Tensor] = {}

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        number, key = prod(shape), (name, dtype)
        flat = self._flat.get(key)
        if flat is None or flat.numel() < number:
            size = max(number, self.sizes.get(name, 0))
            flat = self._flat[key] = torch.empty(size, dtype=torch_dtype(dtype), device=self.device.target)
        return flat[:number].view(*shape)

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(values))
        return self.get(name, host.shape, dtype).copy_(host)
