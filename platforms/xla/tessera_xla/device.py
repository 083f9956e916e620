"""The devices: torch-tpu's, which torch.accelerator knows, and torch_xla's, which it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tessera.platform import Arena, Device, Future, MemoryFigures, Ready, Tensor, TorchDevice
from tessera.platform.device import Tag


class Counted(Arena):
    """Memory is free that core holds nothing in: neither library tells how much XLA has left."""

    def __init__(self, tag: Tag, device: TorchTpuDevice) -> None:
        super().__init__(tag)
        self._device = device

    def hold(self, tensor: Tensor) -> Tensor:
        self._device.held_bytes += int(tensor.nbytes)
        return super().hold(tensor)


class TorchTpuDevice(TorchDevice):
    """A chip of torch-tpu, which tells the memory of one and not what is free. held_bytes: what core holds there. Its
    copies from pinned memory are not known to be ordered after launches, so none is used."""

    eager = False

    def __init__(self, torch: Any, index: int) -> None:
        super().__init__(torch, "tpu", index, pinned=False)
        properties = torch.tpu.get_device_properties(index)
        self.name, self._total, self.held_bytes = str(properties.name), int(properties.total_memory), 0

    def memory(self) -> MemoryFigures:
        return MemoryFigures(total=self._total, free=max(self._total - self.held_bytes, 0))

    def peak(self, run: Callable[[], object]) -> int | None:
        return None

    def arena(self, tag: Tag) -> Arena:
        return Counted(tag, self)


class TorchXlaDevice(Device):
    """A device of torch_xla. What is launched waits until it is asked for: then all of it is compiled, if it was not
    before, and runs. xla: torch_xla."""

    def __init__(self, torch: Any, xla: Any, index: int) -> None:
        self.torch, self.xla = torch, xla
        self.target = xla.device(index)
        self.name = f"PJRT's {xla.runtime.device_type()}"

    def memory(self) -> MemoryFigures:
        try:
            figures = self.xla.core.xla_model.get_memory_info(self.target)
        except RuntimeError:  # PJRT's CPU has no figures
            page = os.sysconf("SC_PAGE_SIZE")
            total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
            return MemoryFigures(total=total, free=free, host=True)
        total = int(figures["bytes_limit"])
        return MemoryFigures(total=total, free=total - int(figures["bytes_used"]))

    def synchronize(self) -> None:
        self.xla.sync(wait=True)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        self.xla.sync()
        return Ready(tensor.cpu().numpy())

    def to_device(self, values: Any, out: Tensor | None = None) -> Tensor:
        source = self.torch.tensor(values).to(self.target)
        return source if out is None else out.copy_(source)
