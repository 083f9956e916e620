"""Compiled programs by name and shape. A step only looks them up, so nothing is compiled behind anybody's back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_CACHE_SETTINGS = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@dataclass(frozen=True)
class Program:
    """What is compiled: function, for the shapes, dtypes and places of the arguments, which are arrays or
    ShapeDtypeStructs. results: where these will be, as jax.jit takes it. donated: the numbers of the arguments whose
    memory they take."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    results: Any
    donated: tuple[int, ...] = ()


class Programs:
    """folder: where JAX keeps what it compiled, by a hash of the program, the compiler and the device, so that a later
    start reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The keys of programs that were compiled here, and of those that the folder had.
        self.compiled_keys: list[Hashable] = []
        self.cached_keys: list[Hashable] = []
        self._compiled: dict[Hashable, Any] = {}

    def get(self, key: Hashable, describe: Callable[[], Program]) -> Any:
        """The compiled program of a key. describe: called if it is not compiled yet, and not in a step."""
        if key not in self._compiled:
            program = describe()
            jitted = jax.jit(program.function, donate_argnums=program.donated, out_shardings=program.results)
            lowered = jitted.lower(*program.arguments)
            before = self._entries()
            with _caching_in(self.folder):
                self._compiled[key] = lowered.compile()
            (self.cached_keys if self._entries() == before else self.compiled_keys).append(key)
        return self._compiled[key]

    def _entries(self) -> int:
        return sum(1 for _ in self.folder.glob("*-cache"))


@contextmanager
def _caching_in(folder: Path) -> Iterator[None]:
    """Within it, JAX keeps programs in a folder. Its settings are the process's, which may not be ours: they are set
    back."""
    wanted = {**_CACHE_SETTINGS, "jax_compilation_cache_dir": str(folder)}
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
