"""Memory and results as some device has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform.device import Arena, Future, HostDevice, MemoryFigures, Tag


class StrictDevice(HostDevice):
    def __init__(self) -> None:
        super().__init__(torch, MemoryFigures(total=1 << 30, free=1 << 30, host=True))

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return _Late(tensor)

    def arena(self, tag: Tag) -> Arena:
        return PoisonedArena(tag) if tag == "kv" else Arena(tag)


class PoisonedArena(Arena):
    """All bits set: NaN in every float format."""

    def hold(self, tensor: Tensor) -> Tensor:
        super().hold(tensor)
        return tensor.fill_(255)


class _Late:
    """Is not there until it is waited for, and then a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.value: Any = None

    def done(self) -> bool:
        return self.value is not None

    def result(self) -> Any:
        if self.value is None:
            self.value = _numpy(self.tensor).copy()
        return self.value


_numpy = torch.Tensor.numpy  # as it is while HostReads counts the others
