"""Whether Triton can compile and launch kernels here. Imports neither Triton nor torch, so that probes may ask."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from tessera.platform import Reason
from tessera_triton.facts import has_compiler

_BUILD_IN_C = ("nvidia", "amd")
"""Backends that build the module by which they launch, with a C compiler, when the first kernel is launched."""
_COMPILERS = ("gcc", "clang")


def absent(name: str, devices: str = "this device") -> Reason | None:
    """Why no kernel runs; None if kernels do. name: Triton's backend. devices: what users call its devices."""
    if not has_compiler(name):
        return f"Triton for {devices} is not installed"
    return no_c_compiler() if name in _BUILD_IN_C else None


def no_c_compiler(headers: Path | None = None) -> Reason | None:
    """What Triton lacks for the modules that it builds in C. headers: the folder of Python's, by default this one's."""
    named = os.environ.get("CC")
    if not any(map(shutil.which, [named] if named else _COMPILERS)):
        where = f"CC names {named[:40]}, which is not there" if named else "there is neither gcc nor clang"
        return f"Triton needs a C compiler, and {where}"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton reads it
    header = (headers or Path(sysconfig.get_path("include", scheme))) / "Python.h"
    if not header.is_file():
        return f"Triton needs {header}, of Python's development package (python3-dev)"
    return None
