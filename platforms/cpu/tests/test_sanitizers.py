"""The kernels under the compiler's address and undefined-behaviour sanitizers, on each instruction set here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
BUILD = TESTS.parent / "csrc/build.py"
RUN = """
import sys
from pathlib import Path
import pytest
import tessera_cpu.native as native
native.FILE = Path(sys.argv[1])
kinds = "products or gates or quantised or int8 or none or looked_up or long_rows or sampling"
chosen = f"{kinds} or (native and bfloat16 and not model)"
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *sys.argv[2:]]))
"""

OVERRUN = """
import sys
from pathlib import Path
import torch
import tessera_cpu.native as native
from tessera_cpu.products import NativeTask, products
native.FILE = Path(sys.argv[1])
own, x = products("bfloat16"), torch.ones(3, 32).bfloat16()
packed, out = own.pack({"weight": torch.ones(32, 32).bfloat16()}), torch.empty(2, 32).bfloat16()
native.library().tessera_cpu_linear(native.BF16, NativeTask(n=32, k=32).of(x, packed, out))
"""


def runtime(name: str) -> str:
    """Where the compiler keeps a library of its own."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return found.strip()


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers are tried with g++")
def test_no_kernel_reads_or_writes_what_is_not_its_own(tmp_path: Path) -> None:
    library = tmp_path / "libtessera_cpu.so"
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([sys.executable, str(BUILD), str(library), *flags], env={**os.environ, "CXX": "g++"}, check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libubsan.so", "libstdc++.so.6"))),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    overrun = [sys.executable, "-c", OVERRUN, str(library)]
    caught = subprocess.run(overrun, env=environment, capture_output=True, text=True, check=False)
    assert caught.returncode != 0
    assert "heap-buffer-overflow" in caught.stderr
    names = ("test_native.py", "test_quantized.py", "test_embedding.py", "test_conformance.py", "test_sampling.py")
    tests = [str(TESTS / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library), *tests], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
