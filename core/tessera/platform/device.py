"""A Device for whatever torch calls a device. torch is handed in, because tessera.platform itself never imports it."""

from __future__ import annotations

from typing import Any

from tessera.platform.platform import Device, Future, MemoryFigures, Ready, Tensor


class TorchDevice(Device):
    """`TorchDevice(torch, "mychip", 0)`: a device as torch.accelerator knows it. Copies to the host are started when
    asked for and are waited for by an event, so what is launched after them goes on meanwhile."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.torch = torch
        self.target = torch.device(kind, index)

    def memory(self) -> MemoryFigures:
        free, total = self.torch.accelerator.get_memory_info(self.target)
        return MemoryFigures(total=total, free=free)

    def synchronize(self) -> None:
        self.torch.accelerator.synchronize(self.target)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        copy = tensor.to("cpu", non_blocking=True)
        arrived = self.torch.Event(device=self.target)
        arrived.record(self.torch.accelerator.current_stream(self.target))
        return _Copy(copy, arrived)


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


class _Copy:
    """On its way to the host until its event has passed."""

    def __init__(self, copy: Any, arrived: Any) -> None:
        self.copy, self.arrived = copy, arrived

    def done(self) -> bool:
        return bool(self.arrived.query())

    def result(self) -> Any:
        self.arrived.synchronize()
        return self.copy.numpy()
