"""Which instruction sets are in the library, and which of them it uses."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tessera_cpu import native
from tessera_cpu.environment import KERNELS
from tests.platforms.cpu_kernels import available, needs_kernels

BUILD = Path(__file__).parent.parent / "csrc/build.py"
OLDER = """#!/bin/sh
case " $* " in *" -mamx"*) echo "error: unrecognized command-line option" >&2; exit 1;; esac
exec g++ "$@"
"""
RECORDING = """#!/bin/sh
case "$1" in
    --version) echo "a compiler, $VERSION"; exit;;
    -dumpmachine) echo riscv64-linux-gnu; exit;;
esac
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then echo "$2" >> "$COMPILED"; echo "$VERSION" > "$2"; fi
    shift
done
"""
AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
AVX512_BF16 = (*AVX512, "avx512_vnni", "avx512_bf16")
NEEDED = {
    "portable": (),
    "avx2": ("avx2", "fma"),
    "avx512": AVX512,
    "avx512_vnni": (*AVX512, "avx512_vnni"),
    "avx512_bf16": AVX512_BF16,
    "amx": (*AVX512_BF16, "amx_tile", "amx_bf16", "amx_int8"),
}
"""What of a processor's flags, as Linux names them, each instruction set needs; worst to best."""


@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="this is about x86-64 and Linux")
def test_the_best_that_the_processor_has_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNELS, raising=False)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    expected = [name for name, needed in NEEDED.items() if flags.issuperset(needed)]
    assert available()[::-1] == expected
    assert native.used() == expected[-1]


@pytest.mark.skipif(os.name != "posix", reason="the compiler is a shell script")
def test_what_the_same_compiler_made_of_the_same_sources_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler, compiled = tmp_path / "compiler", tmp_path / "compiled"
    compiler.write_text(RECORDING)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("COMPILED", str(compiled))
    build = runpy.run_path(str(BUILD))["build"]
    monkeypatch.setitem(build.__globals__, "KEPT", tmp_path / "kept")
    for version, compiles in (("1", True), ("1", False), ("2", True), ("2", False), ("1", True)):
        monkeypatch.setenv("VERSION", version)
        compiled.write_text("")
        build(tmp_path / "made.so")
        assert (tmp_path / "made.so").read_text() == f"{version}\n"
        assert bool(compiled.read_text()) == compiles
        assert len(list((tmp_path / "kept").iterdir())) == 1


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
