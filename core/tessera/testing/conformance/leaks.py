"""Whether a call keeps tensors that it makes: what is made once for a shape may stay, what each call makes may not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def kept_per_call(call: Callable[[], object]) -> int:
    """How many of the tensors that a call makes are still there after the next. The first call may make what stays,
    such as a workspace, and each may keep what it made until the next."""
    call()
    with _TensorLog() as made:
        call()
    call()
    if made.num_alive:
        gc.collect()
    return made.num_alive


class _TensorLog(TorchDispatchMode):
    """Remembers each tensor that an operation of torch returns."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: list[weakref.ref[Tensor]] = []

    @property
    def num_alive(self) -> int:
        """Different ones that are still there."""
        return len({id(tensor) for one in self._tensors if (tensor := one()) is not None})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in HostReads: True would import the compiler."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {id(tensor) for tensor in _tensors((args, kwargs))}
        self._tensors += [weakref.ref(tensor) for tensor in _tensors(result) if id(tensor) not in given]
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
