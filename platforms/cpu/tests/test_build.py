"""The library where the compiler is older than the newest instruction set."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parent.parent / "csrc/build.py"
OLDER = """#!/bin/sh
case " $* " in *" -mamx"*) echo "error: unrecognized command-line option" >&2; exit 1;; esac
exec g++ "$@"
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="it stands for an older one")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="this is about x86-64")
def test_what_the_compiler_does_not_know_is_left_out(tmp_path: Path) -> None:
    compiler = tmp_path / "older"
    compiler.write_text(OLDER)
    compiler.chmod(0o755)
    assert {"avx512_bf16", "amx"} <= named_in(built(tmp_path / "newer.so", "g++"))
    assert {"portable", "avx2", "avx512_bf16"} == named_in(built(tmp_path / "older.so", str(compiler)))


def built(library: Path, compiler: str) -> Path:
    environment = {**os.environ, "CXX": compiler}
    subprocess.run([sys.executable, str(BUILD), str(library), "-O0"], env=environment, check=True)
    return library


def named_in(library: Path) -> set[str]:
    """Those instruction sets whose kernels are in the file."""
    names, content = ("portable", "avx2", "avx512_bf16", "amx"), library.read_bytes()
    return {name for name in names if f"{name}\0".encode() in content}
