"""Compiles the device with the machine's C++ compiler, once for each state of its sources, torch and flags."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

FOLDER = "TORCH_FAKECHIP_BUILD"
"""Names the folder that keeps what was compiled; without it, .build beside this package."""

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w")
_COMPILERS = ("g++", "clang++", "c++")


class BuildError(RuntimeError):
    """Why the device cannot be compiled here, in one line."""


def compiler() -> str | None:
    """$CXX, or the first of the usual ones that is there."""
    named = os.environ.get("CXX")
    return next((found for name in ([named] if named else _COMPILERS) if (found := shutil.which(name))), None)


def library(key: str = "PrivateUse1") -> Path:
    """The compiled device; processes that want it at the same time wait for the first. key: torch's dispatch key for
    it, PrivateUse1 or HPU. Raises BuildError."""
    folder = Path(os.environ.get(FOLDER) or Path(__file__).parents[1] / ".build")
    target = folder / f"torch_fakechip-{_state(key)}.so"
    if target.exists():
        return target
    program = compiler()
    if program is None:
        raise BuildError(f"no C++ compiler: none of {', '.join(_COMPILERS)} is on PATH, nor does CXX name one")
    with _locked(folder):
        if not target.exists():
            _compile(program, key, target)
    return target


def _state(key: str) -> str:
    digest = hashlib.sha256(f"{torch.__version__} {sys.platform} {_FLAGS} {key}".encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(program: str, key: str, target: Path) -> None:
    home = Path(torch.__file__).parent
    includes = [f"-I{home / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    libraries = [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    half = target.with_suffix(f".{os.getpid()}")
    command = [
        program,
        *_FLAGS,
        f"-DFAKECHIP_KEY={key}",
        *includes,
        "-o",
        str(half),
        str(_SOURCES / "device.cpp"),
        *libraries,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"{program} could not compile it: {said}")
    half.rename(target)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
