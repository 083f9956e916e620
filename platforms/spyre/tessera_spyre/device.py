"""A Spyre card as a device of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.platform import Future, Tensor, TorchDevice


class Later:
    """A tensor that is copied to the host when somebody asks for it: the device has streams, but no events."""

    def __init__(self, tensor: Tensor, stream: Any) -> None:
        self.tensor, self.stream = tensor, stream

    def done(self) -> bool:
        return bool(self.stream.query())

    def result(self) -> Any:
        return self.tensor.cpu().numpy()


class SpyreDevice(TorchDevice):
    """Copies from the host wait for what was launched before, since torch allocates no pinned memory for the device."""

    eager = False

    def __init__(self, torch: Any, index: int) -> None:
        super().__init__(torch, "spyre", index, pinned=False)
        self.module = torch.spyre

    def synchronize(self) -> None:
        self.module.synchronize(self.target)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return Later(tensor, self.module.current_stream(self.target))

    def peak(self, run: Callable[[], object]) -> int | None:
        """What tensors take at most."""
        memory = self.module.memory
        memory.reset_peak_memory_stats(self.target)
        taken = memory.memory_allocated(self.target)
        run()
        self.synchronize()
        return int(memory.max_memory_allocated(self.target)) - int(taken)
