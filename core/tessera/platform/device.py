"""One opened device: its memory, its copies to the host, and ready-made devices over what torch calls one.

torch is handed in, because tessera.platform itself never imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

Tensor = Any
"""The device's own: torch's at op depth, another library's where a platform brings its runner."""

Reason = str
"""`Reason | None`: None means yes, a text says why not, for a person to read."""

Tag = Literal["weights", "kv", "workspace", "graphs", "adapters"]
"""What memory is taken for."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes of a device. host: its memory is the host's, so what core takes is missing elsewhere."""

    total: int
    free: int
    host: bool = False


class Future(Protocol[T_co]):
    """A value on its way: result() waits for it."""

    def done(self) -> bool:
        """Whether result() would return at once."""

    def result(self) -> T_co:
        """The value, once it is there; the host waits for the device until then."""


@dataclass(frozen=True)
class Ready:
    """A Future whose value is there."""

    value: Any

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.value


class Arena:
    """A context in which allocations of one purpose are made and counted: `with device.arena("kv") as arena:
    arena.hold(tensor)`."""

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
    """One opened device. target: what tensors are made on (a torch.device at op depth). name: for people."""

    target: Any
    name: str = ""

    @abstractmethod
    def memory(self) -> MemoryFigures:
        """Bytes as they are now: asked at start-up for the budget, and again once the weights are loaded. Never
        in a step."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all that was launched on the device is done, and raises what went wrong there."""

    @abstractmethod
    def to_host(self, tensor: Tensor) -> Future[Any]:
        """Starts a copy to the host, on a stream of its own where there is one; result() is a NumPy array."""

    def arena(self, tag: Tag) -> Arena:
        """Default: only counts."""
        return Arena(tag)

    def seed(self, value: int) -> None:
        """Default: nothing; core's randomness is counter-based and asks no device for numbers."""


class TorchDevice(Device):
    """`TorchDevice(torch, "mychip", 0)`: a device as torch.accelerator knows it. Copies to the host are started when
    asked for and are waited for by an event, so what is launched after them goes on meanwhile. memory() asks torch
    2.10 or newer; with an older one define it."""

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
