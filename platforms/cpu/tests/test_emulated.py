"""What the kernels compute with AVX-512 and AMX, on a processor that lacks some of it: their instructions are spelt out
in C++ (`emulated/immintrin.h`, `emulated/tiles.h`), and the tests of every instruction set run on that library."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms import sanitizers
from tests.platforms.another_library import KERNEL_TESTS, run_tests_on
from tests.platforms.cpu_kernels import available

TESTS = Path(__file__).parent
ASKED = re.compile(r'__builtin_cpu_supports\("avx512\w*"\)|(?<!bool )may_use_tiles\(\)')
INSTRUCTION = re.compile(r'asm\("(\w+) [^"]*" : "\+v"\((\w+)\) : (.*)\);')
BUILD = """
import sys
from pathlib import Path
import build
for name in list(build.VARIANTS["x86_64"]):
    flags = build.VARIANTS["x86_64"][name]
    spelt = [f"-D__{flag[2:].upper().replace('-', '_')}__" for flag in flags if "avx512" in flag or "amx" in flag]
    if spelt:
        build.VARIANTS["x86_64"][name] = ("-mavx2", "-mfma", "-ffp-contract=off", "-I", sys.argv[2], *spelt)
build.build(Path(sys.argv[1]), sys.argv[3:])
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("g++") is None, reason="instructions are spelt out for g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this is about x86-64"),
    pytest.mark.skipif("amx" in available(), reason="this processor has all of AVX-512 and AMX itself"),
]


def test_what_is_computed_with_instructions_that_are_not_here(tmp_path: Path) -> None:
    tests = [TESTS / f"test_{name}.py" for name in KERNEL_TESTS]
    assert run_tests_on(built(tmp_path), "not portable and not avx2 and not refused", tests) > 1000


def test_they_read_and_write_nothing_that_is_not_theirs(tmp_path: Path) -> None:
    library, tests = built(tmp_path, *sanitizers.FLAGS), [TESTS / f"test_{name}.py" for name in ("native", "quantized")]
    chosen = f"(avx512_bf16 or amx) and ({sanitizers.CHOSEN})"
    assert run_tests_on(library, chosen, tests, sanitizers.variables()) > 200


def built(folder: Path, *flags: str) -> Path:
    """The library with these instructions spelt out."""
    sources = shutil.copytree(TESTS.parent / "csrc", folder / "csrc")
    vectors, processor = sources / "simd/avx512.h", sources / "processor.h"
    text = INSTRUCTION.sub(by_name, vectors.read_text())
    assert "asm(" not in text
    vectors.write_text(text)
    text, asked = ASKED.subn("true", processor.read_text())
    assert asked == 7
    processor.write_text(text)
    made, environment = folder / "libtessera_cpu.so", {**os.environ, "CXX": "g++"}
    build = [sys.executable, "-c", BUILD, str(made), str(TESTS / "emulated"), *flags]
    subprocess.run(build, cwd=sources, env=environment, check=True)
    return made


def by_name(instruction: re.Match[str]) -> str:
    """The function of emulated/immintrin.h that is named as the instruction."""
    sources = instruction[3].replace('"v"', "")
    return f"{instruction[1]}({instruction[2]}, {sources});"
