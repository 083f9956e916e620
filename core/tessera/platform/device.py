"""One opened device: its memory, copies to and from the host, and ready-made classes for torch devices.

torch is passed in, because tessera.platform itself never imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from tessera.arrays import Array
from tessera.errors import PlatformError
from tessera.platform.artifacts import Artifacts

Tensor = Any
"""A tensor of the device: torch's at op depth, possibly another library's where a platform brings its own runner."""

Reason = str
"""`Reason | None`: None means yes; otherwise the text tells the user why not."""

Tag = Literal["weights", "kv", "workspace", "graphs", "features"]
"""What memory is used for."""

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class MemoryFigures:
    """A device's memory in bytes. host: the device uses the host's memory, which core shares with everything else."""

    total: int
    free: int
    host: bool = False


class Future(Protocol[T_co]):
    """A value that is not computed or copied yet. Both methods may be called from a thread other than the one that
    launches: in a worker process, one thread waits for outputs while another launches the next step."""

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
    """One opened device."""

    # where tensors are created (a torch.device at op depth)
    target: Any
    # shown to users
    name: str = ""
    # torch runs ops on it one by one, and compiles none for its shapes first; core then fills random weights there, and
    # otherwise on the host
    eager: bool = False
    # a cache on disk, for programs compiled for the device; core sets it as soon as the device is open, so kernels,
    # attention backends and graph runners find it in the device that they receive; before that, and in the conformance
    # kit, it keeps nothing
    artifacts: Artifacts = Artifacts(None)

    def enter_thread(self) -> None:
        """Makes the device the current one of the calling thread. Core calls it, once for each open device, in every
        thread that touches futures, events or tensors of the device, before it does; the thread that opens a device has
        entered. Where devices are selected by thread, a library that is called in another thread would use the first
        device, and take memory of it. May be called again. Default: nothing."""

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

    def to_device(self, values: Array, out: Tensor | None = None) -> Tensor:
        """Starts a copy of a C-contiguous host array to the device and returns the device's tensor, without waiting.
        out: a dense tensor of the array's shape to copy into, of any dtype that NumPy has; default: a new tensor of the
        array's shape and dtype. The copy is ordered after all work launched before it. The caller may change values as
        soon as this returns. Default: raises PlatformError; only core's model runner calls it."""
        raise PlatformError(f"{type(self).__name__} has no to_device(), which core's model runner needs; implement it.")

    def peak(self, run: Callable[[], object]) -> int | None:
        """The most bytes of the device that run() takes at once beyond what is taken when it begins. Called only at
        start-up, when nothing else runs. None, without calling run(): the device cannot tell, so core estimates what a
        step takes. Default: None."""
        return None

    def arena(self, tag: Tag) -> Arena:
        """Default: only counts."""
        return Arena(tag)

    def seed(self, value: int) -> None:
        """Default: nothing; core's randomness is counter-based and asks no device for numbers."""


class TorchDevice(Device):
    """`TorchDevice(torch, "mychip", 0)`: a device that torch.accelerator supports. to_host() starts a copy, and its
    result() waits for an event, so work that is launched later continues meanwhile. to_device() copies through a ring
    of pinned host buffers, on the current stream. pinned: torch can allocate pinned memory for the device; if not, each
    copy waits for all work launched before it. memory() needs torch 2.10 or newer; override it for an older one."""

    eager = True

    def __init__(self, torch: Any, kind: str, index: int, *, pinned: bool = True) -> None:
        self.torch = torch
        self.target = torch.device(kind, index)
        self._staging = _Staging(torch, self.target) if pinned else None

    def enter_thread(self) -> None:
        self.torch.accelerator.set_device_index(self.target)

    def memory(self) -> MemoryFigures:
        free, total = self.torch.accelerator.get_memory_info(self.target)
        return MemoryFigures(total=total, free=free)

    def synchronize(self) -> None:
        self.torch.accelerator.synchronize(self.target)

    def peak(self, run: Callable[[], object]) -> int | None:
        """What torch's allocator reserves at most, and what libraries take beside it."""
        accelerator = self.torch.accelerator
        accelerator.empty_cache()
        accelerator.reset_peak_memory_stats(self.target)
        reserved, free = accelerator.memory_reserved(self.target), self.memory().free
        run()
        self.synchronize()
        most = accelerator.max_memory_reserved(self.target) - reserved
        beside = free - self.memory().free - (accelerator.memory_reserved(self.target) - reserved)
        accelerator.empty_cache()
        return int(most) + max(int(beside), 0)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        copy = tensor.to("cpu", non_blocking=True)
        arrived = self.torch.Event(device=self.target)
        arrived.record(self.torch.accelerator.current_stream(self.target))
        return _Copy(copy, arrived)

    def to_device(self, values: Array, out: Tensor | None = None) -> Tensor:
        if self._staging is None:
            source = self.torch.tensor(values)
            return source.to(self.target) if out is None else out.copy_(source)
        return self._staging.copy(values, out)


class ModuleDevice(TorchDevice):
    """`ModuleDevice(torch, "mychip", 0)`: a TorchDevice whose memory torch.accelerator does not know. torch's module of
    the device, torch.mychip, does: mem_get_info(), memory_allocated(), max_memory_allocated(),
    reset_peak_memory_stats()."""

    def __init__(self, torch: Any, kind: str, index: int, *, pinned: bool = True) -> None:
        super().__init__(torch, kind, index, pinned=pinned)
        self.module = getattr(torch, kind)
        self._index = index

    @classmethod
    def open(cls, torch: Any, kind: str, index: int) -> Self:
        """The device, made current and named; for Platform.open(). Raises PlatformError if torch does not find so
        many."""
        name = make_current(torch, kind, index)
        device = cls(torch, kind, index)
        device.name = name
        return device

    def enter_thread(self) -> None:
        self.module.set_device(self._index)

    def memory(self) -> MemoryFigures:
        free, total = self.module.mem_get_info(self.target)
        return MemoryFigures(total=int(total), free=int(free))

    def synchronize(self) -> None:
        self.module.synchronize(self.target)

    def peak(self, run: Callable[[], object]) -> int | None:
        """What tensors take at most. What libraries take beside them is not counted."""
        self.module.reset_peak_memory_stats(self.target)
        taken = self.module.memory_allocated(self.target)
        run()
        self.synchronize()
        return int(self.module.max_memory_allocated(self.target)) - int(taken)


def make_current(torch: Any, kind: str, index: int) -> str:
    """Makes a device of torch's module of its kind (torch.mychip) the current one; for Platform.open(). Returns its
    name. Raises PlatformError if torch does not find so many."""
    devices = getattr(torch, kind)
    count = devices.device_count()
    if index >= count:
        raise PlatformError(
            f"there is no device {index}: torch finds {count}; lower --tensor-parallel-size or "
            "--pipeline-parallel-size, or make more devices visible to this process."
        )
    devices.set_device(index)
    return str(devices.get_device_name(index))


class HostDevice(TorchDevice):
    """The host's own processor and memory. Nothing is asynchronous, so a copy is available at once."""

    def __init__(self, torch: Any, memory: MemoryFigures, name: str = "") -> None:
        self.torch, self.name = torch, name
        self.target = torch.device("cpu")
        self._memory = memory

    def enter_thread(self) -> None:
        return None

    def memory(self) -> MemoryFigures:
        return self._memory

    def peak(self, run: Callable[[], object]) -> int | None:
        return None

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return Ready(tensor.numpy())

    def to_device(self, values: Array, out: Tensor | None = None) -> Tensor:
        if out is None:
            return self.torch.tensor(values)
        out.numpy()[...] = values
        return out


class _Copy:
    """On its way to the host until its event has passed."""

    def __init__(self, copy: Any, arrived: Any) -> None:
        self.copy, self.arrived = copy, arrived

    def done(self) -> bool:
        return bool(self.arrived.query())

    def result(self) -> Any:
        self.arrived.synchronize()
        return self.copy.numpy()


_BUFFER_BYTES = 1 << 18  # holds the inputs of several decode steps
_ALIGNMENT = 64  # bytes, at which each array in a buffer begins


@dataclass
class _PinnedBuffer:
    """Pinned host memory, from which arrays are copied to a device."""

    # a uint8 tensor of pinned host memory
    memory: Any
    # bytes
    size: int
    # an event recorded after the last copy out of it
    copied: Any
    # bytes taken by arrays, from the start
    used: int = 0
    # by torch dtype, all of it as a tensor and as an array
    views: dict[Any, tuple[Any, Array]] = field(default_factory=dict)

    def as_dtype(self, dtype: Any) -> tuple[Any, Array]:
        if dtype not in self.views:
            tensor = self.memory.view(dtype)
            self.views[dtype] = tensor, tensor.numpy()
        return self.views[dtype]


class _Staging:
    """A ring of pinned host buffers. Each array is written into the current buffer and copied to the device from there.
    A full buffer is used again once all copies out of it are done; if none is, another one is allocated. So nothing
    waits, and after a few steps there are as many buffers as the steps in flight need. Not thread-safe: only the thread
    that launches may copy."""

    def __init__(self, torch: Any, target: Any) -> None:
        self.torch, self.target = torch, target
        self._current: _PinnedBuffer | None = None
        self._full: dict[int, deque[_PinnedBuffer]] = {}  # by size, oldest first

    def copy(self, values: Array, out: Tensor | None) -> Tensor:
        if out is None:
            dtype = getattr(self.torch, values.dtype.name)
            out = self.torch.empty(values.shape, dtype=dtype, device=self.target)
        buffer = self._with_room(out.nbytes)
        tensor, array = buffer.as_dtype(out.dtype)
        first = buffer.used // out.itemsize
        last = first + out.numel()
        buffer.used += -(-out.nbytes // _ALIGNMENT) * _ALIGNMENT
        array[first:last] = values.reshape(-1)
        out.copy_(tensor[first:last].view(out.shape), non_blocking=True)
        return out

    def _with_room(self, nbytes: int) -> _PinnedBuffer:
        """The current buffer, or the next one if the array does not fit any more."""
        buffer = self._current
        if buffer is None or buffer.used + nbytes > buffer.size:
            if buffer is not None:
                buffer.copied.record(self.torch.accelerator.current_stream(self.target))
                self._full.setdefault(buffer.size, deque()).append(buffer)
            buffer = self._current = self._empty(max(_BUFFER_BYTES, 1 << (nbytes - 1).bit_length()))
        return buffer

    def _empty(self, size: int) -> _PinnedBuffer:
        """The oldest buffer of this size if its copies are done, else a new one."""
        full = self._full.get(size)
        if full and full[0].copied.query():
            buffer = full.popleft()
            buffer.used = 0
            return buffer
        try:
            memory = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise PlatformError(
                f"torch allocated no pinned host memory for {self.target} ({str(error).partition(chr(10))[0]}); if "
                "there is none for this device, its platform must open it with TorchDevice(..., pinned=False)."
            ) from error
        return _PinnedBuffer(memory, size, self.torch.Event(device=self.target))
