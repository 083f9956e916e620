"""The kernels under the compiler's sanitizers, on each instruction set here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms.another_library import run_tests_on
from tests.platforms.sanitizers import CHOSEN, FLAGS, variables

TESTS = Path(__file__).parent
BUILD = TESTS.parent / "csrc/build.py"
OVERRUN = """
import sys
from pathlib import Path
import torch
import tessera_cpu.native as native
from tessera_cpu.products import NativeTask, products
native.FILE = Path(sys.argv[1])
own, x = products("bfloat16"), torch.ones(3, 32).bfloat16()
packed, out = own.pack({"weight": torch.ones(32, 32).bfloat16()}), torch.empty(2, 32).bfloat16()
native.library().tessera_cpu_linear(native.BF16, NativeTask(n=32, k=32).fill(x, packed, out))
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers are tried with g++")
def test_no_kernel_reads_or_writes_what_is_not_its_own(tmp_path: Path) -> None:
    library = tmp_path / "libtessera_cpu.so"
    subprocess.run([sys.executable, str(BUILD), str(library), *FLAGS], env={**os.environ, "CXX": "g++"}, check=True)
    overrun, environment = [sys.executable, "-c", OVERRUN, str(library)], {**os.environ, **variables()}
    caught = subprocess.run(overrun, env=environment, capture_output=True, text=True, check=False)
    assert caught.returncode != 0
    assert "heap-buffer-overflow" in caught.stderr
    names = ("native", "quantized", "embedding", "conformance", "sampling")
    tests = [TESTS / f"test_{name}.py" for name in names]
    assert run_tests_on(library, f"{CHOSEN} or (native and bfloat16 and not model)", tests, variables()) > 500
