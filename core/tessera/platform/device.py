"""A Device for whatever torch calls a device. torch is handed in, because tessera.platform itself never imports it."""

from __future__ import annotations

from typing import Any

from tessera.platform.platform import Device, Future, MemoryFigures, Ready, Tensor


class TorchDevice(Device):
    """`TorchDevice(torch, "mychip", 0)`: a device as torch.accelerator knows it. Copies to the host wait for the
    device."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.torch = torch
        self.target = torch.device(kind, index)

    def memory(self) -> MemoryFigures:
        free, total = self.torch.accelerator.get_memory_info(self.target)
        return MemoryFigures(total=total, free=free)

    def synchronize(self) -> None:
        self.torch.accelerator.synchronize(self.target)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return _LateCopy(tensor)


class HostDevice(TorchDevice):
    """The host's own processor and memory. Nothing is asynchronous, so a copy is there at once."""

    def __init__(self, torch: Any, memory: MemoryFigures, name: str = "") -> None:
        self.torch, self.name = torch, name
        self.target = torch.device("cpu")
        self._memory = memory

    def memory(self) -> MemoryFigures:
        return self._memory

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return Ready(tensor.numpy())


class _LateCopy:
    """Reads the tensor when asked; the tensor must not be written before."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def done(self) -> bool:
        return False

    def result(self) -> Any:
        return self.tensor.cpu().numpy()
