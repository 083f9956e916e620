"""One opened device: its memory, its copies to the host, and ready-made classes for torch devices.

torch is passed in, because tessera.platform itself never imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

Tensor = Any
"""A tensor of the device: torch's at op depth, possibly another library's where a platform brings its own runner."""

Reason = str
"""`Reason | None`: None means yes; otherwise the text tells the user why not."""

Tag = Literal["weights", "kv", "workspace", "graphs", "adapters"]
"""What memory is used for."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class MemoryFigures:
    """A device's memory in bytes. host: the device uses the host's memory, which core shares with everything else."""

    total: int
    free: int
    host: bool = False


class Future(Protocol[T_co]):
    """A value that is not computed or copied yet; result() waits for it."""

    def done(self) -> bool:
        """Whether result() would return at once."""

    def result(self) -> T_co:
        """The value. Blocks the host until the device has produced it."""


@dataclass(frozen=True)
class Ready:
    """A Future whose value is already available."""

    value: Any

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.value


class Arena:
    """A context that counts allocations for one purpose: `with device.arena("kv") as arena: arena.hold(tensor)`."""

    def __init__(self, tag: Tag) -> None:
        self.tag = tag
        self.nbytes = 0

    def hold(self, tensor: Tensor) -> Tensor:
        """Counts a tensor (anything with nbytes) that was allocated for this purpose, and returns it."""
        self.nbytes += int(tensor.nbytes)
        return tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Device(ABC):
    """One opened device. target: where tensors are created (a torch.device at op depth). name: shown to users."""

    target: Any
    name: str = ""

    @abstractmethod
    def memory(self) -> MemoryFigures:
        """Current memory figures. Called at start-up, for the memory budget, and again after the weights are loaded.
        Never called in a step."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all work launched on the device is done, and raises any error that it caused."""

    @abstractmethod
    def to_host(self, tensor: Tensor) -> Future[Any]:
        """Starts a copy to the host, on a separate stream if the device has them. result() is a NumPy array."""

    def arena(self, tag: Tag) -> Arena:
        """Default: only counts."""
        return Arena(tag)

    def seed(self, value: int) -> None:
        """Default: nothing; core's randomness is counter-based and asks no device for numbers."""


class TorchDevice(Device):
    """`TorchDevice(torch, "mychip", 0)`: a device that torch.accelerator supports. to_host() starts a copy, and its
    result() waits for an event, so work that is launched later continues meanwhile. memory() needs torch 2.10 or newer;
    override it for an older one."""

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
    """The host's own processor and memory. Nothing is asynchronous, so a copy is available at once."""

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
