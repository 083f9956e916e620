"""Plugins' modules are imported by the front process, which never holds torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec

REFUSED = ("torch", "transformers")


@contextmanager
def without_torch() -> Iterator[list[str]]:
    """Within it, this thread's imports of torch and transformers fail; what was asked for is in the list that it
    yields, also where the importer swallowed the error. A module that the process holds already is not asked for
    again."""
    guard = _Guard(threading.get_ident())
    sys.meta_path.insert(0, guard)
    try:
        yield guard.attempts
    finally:
        sys.meta_path.remove(guard)


class _Guard:
    """A finder that refuses."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.attempts: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if threading.get_ident() != self.thread or name.partition(".")[0] not in REFUSED:
            return None
        self.attempts.append(name)
        raise ModuleNotFoundError(f"{name} is not for a plugin's module to import", name=name)
