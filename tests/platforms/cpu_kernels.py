"""The platform with the kernels of one instruction set, or torch's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tessera_cpu import native
from tessera_cpu.environment import KERNELS


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """name: of an instruction set, or "torch"."""
    before = os.environ.get(KERNELS)
    os.environ[KERNELS] = name
    native.library.cache_clear()
    try:
        yield
    finally:
        os.environ.pop(KERNELS)
        if before is not None:
            os.environ[KERNELS] = before
        native.library.cache_clear()
        native.library()  # the instruction set is the library's, which stays loaded


def available() -> list[str]:
    """Instruction sets of this processor, the best first."""
    library = native.library()
    return [] if library is None else native.variants(library)[::-1]


needs_kernels = pytest.mark.skipif(
    not available() and os.environ.get("TESSERA_REQUIRE_ALL") != "1",  # which wants them, so their tests fail without
    reason="the native kernels were not built: no C++ compiler",
)
