"""The platform with the kernels of one instruction set, or torch's alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera_cpu import native


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """name: of an instruction set, or "torch"."""
    before = os.environ.get(native.VARIABLE)
    os.environ[native.VARIABLE] = name
    native.library.cache_clear()
    try:
        yield
    finally:
        os.environ.pop(native.VARIABLE)
        if before is not None:
            os.environ[native.VARIABLE] = before
        native.library.cache_clear()
        native.library()  # the instruction set is the library's, which stays loaded


def available() -> list[str]:
    """Instruction sets of this processor, the best first."""
    library = native.library()
    return [] if library is None else native.variants(library)[::-1]


_ON_ANOTHER_LIBRARY = """
import sys
from pathlib import Path
import pytest
import tessera_cpu.native as native
native.FILE = Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", *sys.argv[2:]]))
"""


def run_tests_on(library: Path, chosen: str, tests: Sequence[Path], variables: Mapping[str, str] | None = None) -> int:
    """How many of the tests that -k chooses pass with another library of kernels; all must. variables: more of the
    environment."""
    command = [sys.executable, "-c", _ON_ANOTHER_LIBRARY, str(library), chosen, *map(str, tests)]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    return int(passed[1])


needs_kernels = pytest.mark.skipif(
    not available() and os.environ.get("TESSERA_REQUIRE_ALL") != "1",  # which wants them, so their tests fail without
    reason="the native kernels were not built: no C++ compiler",
)
