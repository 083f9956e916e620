"""Launches of kernels that are compiled already, without Triton's binder.

Triton looks at every argument of a launch to find the kernel that was compiled for such arguments, and reads its own
settings from the environment, which takes the host longer than the launch itself. This launcher finds the kernel by
what must be equal: dtype and alignment of tensors, the values of numbers, unless the kernel leaves them open, and all
constants. Whatever it has not seen goes through Triton, which compiles it, or finds that it has."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera_triton.facts import Launcher

_ALIGNMENT = 15  # bits of a pointer that Triton asks to be 0
_INT32 = 1 << 31
_LIMIT = 4096
"""Kernels by arguments that are known at once; there are some hundred in a model."""


class DirectLauncher(Launcher):
    """For backends that compile by nothing else, unlike AMD's, which looks at how large a tensor's memory is, and for
    one device."""

    def __init__(self) -> None:
        super().__init__()
        # What Triton compiled, and the constants that it takes behind the arguments, by key().
        self._compiled: dict[Any, tuple[Any, list[Any]]] = {}
        # Whether a kernel leaves the value of an argument open, by place.
        self._open: dict[Any, tuple[bool, ...]] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        key = self.key(kernel, arguments, options)
        known = self._compiled.get(key)
        if known is not None:
            compiled, constants = known
            compiled[(*grid, 1, 1)[:3]](*arguments, *constants)
            return
        self._launched.add(kernel)
        if len(self._compiled) >= _LIMIT:
            self._compiled.clear()
        compiled = kernel[grid](*arguments, **options)
        if compiled is not None:
            self._compiled[key] = compiled, [options[name] for name in kernel.arg_names[len(arguments) :]]

    def key(self, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Equal only for launches that Triton compiles to the same kernel."""
        known = self._open.get(kernel)
        if known is None:
            known = self._open[kernel] = tuple(parameter.do_not_specialize for parameter in kernel.params)
        key: list[Any] = [kernel, *options.items()]
        add = key.append
        for value, is_open in zip(arguments, known, strict=False):
            if isinstance(value, Tensor):
                add(value.dtype)
                add(value.data_ptr() & _ALIGNMENT)
            elif isinstance(value, float):
                add(float)
            elif type(value) is not int:
                add((type(value), value))
            elif is_open:
                add(-_INT32 <= value < _INT32)
            else:
                add(value)
        return tuple(key)
