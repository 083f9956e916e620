"""Builds the library of native kernels: all instruction sets of one architecture in one file, which depends only on the
C library. Run `python build.py FILE`; the package's build (hatch_build.py) does the same. A library that the same
compiler made of the same sources is kept, since that takes minutes."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE.parent / "build"
COMMON = (
    "library.cpp",
    "calls.cpp",
    "tape.cpp",
    "shares.cpp",
    "latents.cpp",
    "mixture.cpp",
    "edits.cpp",
    "sampling.cpp",
    "logprobs.cpp",
    "room.cpp",
    "threads.cpp",
)
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
AVX512_BF16 = (*AVX512, "-mavx512vnni", "-mavx512bf16")
NEON = "-DWITH_INTRINSICS"  # which every processor has, so that only this tells it from portable C++
DOTPROD = "-march=armv8.2-a+dotprod"
SVE = "-march=armv8.2-a+sve"
VARIANTS = {
    "x86_64": {
        "portable": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": AVX512,
        "avx512_vnni": (*AVX512, "-mavx512vnni"),
        "avx512_bf16": AVX512_BF16,
        "amx": (*AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
    },
    "aarch64": {
        "portable": (),
        "neon": (NEON,),
        "neon_dotprod": (NEON, DOTPROD),
        "neon_bf16": (NEON, f"{DOTPROD}+bf16+i8mm"),
        "sve_256": (SVE, "-msve-vector-bits=256"),
        "sve_256_bf16": (f"{SVE}+dotprod+bf16+i8mm", "-msve-vector-bits=256"),
        "sve_512": (SVE, "-msve-vector-bits=512"),
    },
    "powerpc64le": {
        "portable": (),
        "vsx": ("-mcpu=power9",),
        "mma": ("-mcpu=power10",),
    },
}
"""By the first part of a compiler's target. Variants whose flags the compiler does not know are left out."""
NAMES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "powerpc64le"}
"""How some compilers call these processors."""
LINUX_NAMES = {"powerpc64le": "ppc64le"}
"""How Linux calls them, if otherwise than a compiler."""
ON_LINUX = ("amx", "sve_256", "sve_256_bf16", "sve_512")
"""Variants that need what Linux says of a processor, or grants."""
FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)


class BuildError(Exception):
    """Why the library cannot be built, in one line."""


def compiler() -> str:
    """CXX, or the first usual compiler found. Raises BuildError."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BuildError(f"no C++ compiler ({named or 'c++, g++ or clang++'}) was found")


def build(target: Path, extra: Sequence[str] = ()) -> None:
    """Compiles and links for the compiler's target, unless there is such a library in KEPT. extra: additional flags,
    with which none is kept. Raises BuildError."""
    cxx = compiler()
    if extra:
        _compile(cxx, target, extra)
        return
    machine = _target(cxx).partition("-")[0]
    kept = KEPT / f"{machine}-{_digest(cxx)}.so"
    if not kept.exists():
        _compile(cxx, kept, ())
        for older in KEPT.glob(f"{machine}-*.so"):
            if older != kept:
                older.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    ours = _of_this_process(target)
    shutil.copyfile(kept, ours)
    ours.replace(target)


def _digest(cxx: str) -> str:
    """Of all that decides what is in the library."""
    version = subprocess.run([cxx, "--version"], capture_output=True, check=False).stdout
    sources = sorted(path for path in HERE.rglob("*") if path.suffix in (".cpp", ".h", ".py"))
    said = [
        version,
        repr((VARIANTS, FLAGS)).encode(),
        *(part for path in sources for part in (str(path.relative_to(HERE)).encode(), path.read_bytes())),
    ]
    return hashlib.sha256(b"\0".join(said)).hexdigest()[:16]


def _of_this_process(target: Path) -> Path:
    """Where to write what is then renamed, so that no reader sees half a file."""
    return target.with_name(f"{target.name}.{os.getpid()}")


def _compile(cxx: str, target: Path, extra: Sequence[str]) -> None:
    machine, _, system = _target(cxx).partition("-")
    variants = {
        name: flags
        for name, flags in VARIANTS.get(machine, {"portable": ()}).items()
        if _has(cxx, flags) and ("linux" in system or name not in ON_LINUX)
    }
    known = [f"-DWITH_{name.upper()}" for name in variants]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [[source, *known, *extra, "-o", f"{folder}/{source}.o"] for source in COMMON]
        for name, flags in variants.items():
            jobs.append(["variant.cpp", f"-DVARIANT={name}", *flags, *extra, "-o", f"{folder}/{name}.o"])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _run([cxx, *FLAGS, *_quiet(cxx), "-c", *job]), jobs))
        target.parent.mkdir(parents=True, exist_ok=True)
        ours = _of_this_process(target)
        _run([cxx, "-shared", *extra, *(job[-1] for job in jobs), *_linking(system), "-o", str(ours)])
        ours.replace(target)


def is_for_another() -> bool:
    """Whether the compiler compiles for another architecture than this machine's. Raises BuildError."""
    own = platform.machine().lower()
    return _target(compiler()).partition("-")[0] != NAMES.get(own, own)


def wheel_platform(library: Path) -> str:
    """The platform tag of a wheel with the library. On Linux, it is for the C library's version that the symbols need
    (PEP 600), since the library depends on nothing else."""
    machine, _, system = _target(compiler()).partition("-")
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    if "linux" not in system or not needed:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    major, minor = max((int(major), int(minor)) for major, minor in needed)
    return f"manylinux_{major}_{minor}_{LINUX_NAMES.get(machine, machine)}"


def _target(cxx: str) -> str:
    """What the compiler compiles for: processor, vendor and system, as in x86_64-linux-gnu."""
    said = subprocess.run([cxx, "-dumpmachine"], capture_output=True, text=True, check=False).stdout.strip()
    machine, _, system = said.partition("-")
    return f"{NAMES.get(machine, machine)}-{system}"


def _has(cxx: str, flags: Sequence[str]) -> bool:
    """Whether the compiler supports these flags."""
    command = [cxx, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def _quiet(cxx: str) -> Sequence[str]:
    """Flags that silence warnings of GCC 12 about its own intrinsics."""
    return (
        ()
        if "clang" in cxx
        else ("-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-ignored-attributes")
    )


def _linking(system: str) -> Sequence[str]:
    return ("-lm",) if "darwin" in system else ("-Wl,--as-needed", "-lm", "-lpthread")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0].strip()}")


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]).absolute(), sys.argv[2:])
    except BuildError as error:
        sys.exit(f"The native kernels were not built: {error}.")
