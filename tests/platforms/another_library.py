"""Tests of the CPU platform with a library of kernels that was built for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

KERNEL_TESTS = (
    "native",
    "quantized",
    "embedding",
    "blocks",
    "gguf_blocks",
    "attention",
    "conformance",
    "sampling",
    "batch_invariance",
    "state",
)
"""What decides whether a library is right: platforms/cpu/tests/test_NAME.py."""

_ON_ANOTHER_LIBRARY = """
import json
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path
import pytest
import tessera_cpu.native as native
from tests.platforms.foreign import Library
native.FILE = Path(sys.argv[1])
number, shares = map(int, sys.argv[3].split("/"))
class Share:
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if (zlib.crc32(item.nodeid.encode()) + number) % shares == 0]
with ExitStack() as stack:
    if emulator := json.loads(sys.argv[2]):
        emulated = stack.enter_context(Library([*emulator, sys.argv[1]]))
        native.CDLL = lambda file: emulated
        print("instruction sets:", *native.variants(native.library()))
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", *sys.argv[4:]], plugins=[Share()])
sys.exit(status)
"""


class Ran(NamedTuple):
    """passed: tests. sets: the instruction sets of an emulated processor, worst to best."""

    passed: int
    sets: list[str]


def run_tests_on(library: Path, chosen: str, tests: Sequence[Path], variables: Mapping[str, str] | None = None) -> int:
    """How many of the tests that -k chooses pass with another library of kernels; all must. variables: more of the
    environment."""
    return _run((), library, chosen, tests, variables or {}, (0, 1)).passed


def run_tests_emulated(
    emulator: Sequence[str],
    library: Path,
    chosen: str,
    tests: Sequence[Path],
    variables: Mapping[str, str],
    share: tuple[int, int],
) -> Ran:
    """The same with a library for another processor. emulator: the command that loads it, see foreign.py. share: a
    number, such as today's, and into how many shares the tests are dealt; the number says which share runs."""
    return _run(emulator, library, chosen, tests, variables, share)


def _run(
    emulator: Sequence[str],
    library: Path,
    chosen: str,
    tests: Sequence[Path],
    variables: Mapping[str, str],
    share: tuple[int, int],
) -> Ran:
    dealt = [json.dumps(emulator), "/".join(map(str, share)), chosen]
    command = [sys.executable, "-c", _ON_ANOTHER_LIBRARY, str(library), *dealt, *map(str, tests)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    passed, sets = (
        re.search(r"(\d+) passed", done.stdout),
        re.search(r"^instruction sets: (.*)$", done.stdout, re.MULTILINE),
    )
    assert passed
    return Ran(int(passed[1]), sets[1].split() if sets else [])
