"""Detects where the host waits for an asynchronous device: implicit reads of its memory, which also give wrong results
in a captured step, copies to it from memory that is not pinned, and synchronization."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READING_OPS = (
    "aten._local_scalar_dense",
    "aten.is_nonzero",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.unique_dim",
    "aten.unique_consecutive",
    "aten.equal",
    "aten.repeat_interleave.Tensor",
)
_INDEXING_OPS = ("aten.index.Tensor", "aten.index_put", "aten.index_put_", "aten._index_put_impl_")
_COPIES = ("aten._to_copy", "aten.copy_")
_READING_METHODS = ("item", "numpy", "tolist", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__")


class HostReads(TorchDispatchMode):
    """`with HostReads() as reads: ...; assert not reads.lines`. lines: where each implicit read, and each other wait,
    happened. Explicit reads go through Device.to_host, copies to the device through Device.to_device. A device whose
    memory is the host's hides copies, and torch hides an event that is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._inside = False
        self._patches = [patch.object(torch.Tensor, name, self._reading(name)) for name in _READING_METHODS]
        self._patches.append(patch.object(torch.accelerator, "synchronize", self._synchronizing()))

    def __enter__(self) -> Self:
        for method in self._patches:
            method.start()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for method in self._patches:
            method.stop()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Documented by torch for subclasses. Nothing here is compiled, but returning True would import the compiler,
        which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func)
        to_host = name in _COPIES and _leaves_the_device(args, kwargs or {})
        if to_host or name in _READING_OPS or (name in _INDEXING_OPS and _by_mask(args[1])):
            self._note(name)
        elif name in _COPIES and _waits_for_the_device(args, kwargs or {}):
            self._note(f"{name} to the device, from memory that is not pinned,")
        return func(*args, **(kwargs or {}))

    def explicit(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a call whose reads are intended, such as Device.to_host, so that they are not recorded."""

        def meant(*args: Any, **kwargs: Any) -> Any:
            outer, self._inside = self._inside, True
            try:
                return call(*args, **kwargs)
            finally:
                self._inside = outer

        return meant

    def _reading(self, name: str) -> Any:
        original = self.explicit(getattr(torch.Tensor, name))  # what it calls is not another read

        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not tensor.is_pinned():  # which only the host's memory is
                self._note(name)
            return original(tensor, *args, **kwargs)

        return method

    def _synchronizing(self) -> Any:
        original = torch.accelerator.synchronize

        def synchronize(*args: Any, **kwargs: Any) -> None:
            self._note("torch.accelerator.synchronize")
            original(*args, **kwargs)

        return synchronize

    def _note(self, what: str) -> None:
        if self._inside:
            return
        frames = [frame for frame in traceback.extract_stack() if not _between(frame.filename)]
        self.lines.append(f"{what} in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}")


@cache
def _name(func: Any) -> str:
    return str(func).replace(".default", "")


def _by_mask(indices: Any) -> bool:
    """Whether one of the indices is a mask: the host must know how many of its elements are set."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _waits_for_the_device(args: Any, kwargs: Any) -> bool:
    """Of a copy: to a device, from memory of the host that has to be read before the copy returns."""
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        to, source, non_blocking = args[0].device.type, args[1], kwargs.get("non_blocking", len(args) > 2 and args[2])
    else:
        to, source = torch.device(kwargs.get("device") or "cpu").type, args[0]
        non_blocking = kwargs.get("non_blocking", False)
    return source.device.type == "cpu" != to != "meta" and not (non_blocking and source.is_pinned())


def _leaves_the_device(args: Any, kwargs: Any) -> bool:
    """Whether a copy is from a device to the host."""
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        return args[0].device.type == "cpu" != args[1].device.type
    target = kwargs.get("device")
    return target is not None and torch.device(target).type == "cpu" != args[0].device.type


def _between(filename: str) -> bool:
    return "/torch/" in filename or filename == __file__
