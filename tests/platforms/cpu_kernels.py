"""The platform with the kernels of one instruction set, or torch's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tessera.platform import Scheme
from tessera.testing import candidates
from tessera_cpu import native
from tessera_cpu.environment import KERNELS
from tessera_cpu.quantized import served


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


def served_scheme(name: str, k: int) -> Scheme:
    """The scheme of --quantization that the kernels take for k inputs."""
    found = served(candidates(name, k)[0])
    assert isinstance(found, Scheme), found
    return found


needs_kernels = pytest.mark.skipif(
    not available() and os.environ.get("TESSERA_REQUIRE_ALL") != "1",  # which wants them, so their tests fail without
    reason="the native kernels were not built: no C++ compiler",
)
