"""Tests of the CPU platform with a library of kernels that was built for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
