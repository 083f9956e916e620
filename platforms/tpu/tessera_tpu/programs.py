"""Compiled programs by name and shape. A step only looks them up, so nothing is compiled behind anybody's back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_KEPT = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class Programs:
    """folder: where JAX keeps what it compiled, by a hash of the program, the compiler and the device, so that a later
    start reads it. made: the keys of programs that were compiled; read: of those that were found there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Hashable] = []
        self.read: list[Hashable] = []
        self._compiled: dict[Hashable, Any] = {}

    def get(
        self,
        key: Hashable,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        results: Any,
        donated: tuple[int, ...] = (),
    ) -> Any:
        """The program of a key: function, compiled for the shapes, dtypes and places of the arguments the first time.
        arguments: arrays, or ShapeDtypeStructs. results: where these will be, as jax.jit takes it. donated: the numbers
        of the arguments whose memory they take."""
        if key not in self._compiled:
            lowered = jax.jit(function, donate_argnums=donated, out_shardings=results).lower(*arguments)
            before = self._entries()
            with _kept_in(self.folder):
                self._compiled[key] = lowered.compile()
            (self.read if self._entries() == before else self.made).append(key)
        return self._compiled[key]

    def _entries(self) -> int:
        return sum(1 for _ in self.folder.glob("*-cache"))


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Within it, JAX keeps programs in a folder. Its settings are the process's, which may not be ours: they are set
    back."""
    wanted = {**_KEPT, "jax_compilation_cache_dir": str(folder)}
    before = {name: getattr(jax.config, name) for name in wanted}
    _settle(wanted)
    try:
        yield
    finally:
        _settle(before)


def _settle(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
