"""A library of kernels with the compiler's address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""That g++ builds it with."""

CHOSEN = "products or gates or quantised or int8 or none or looked_up or long_rows or sampling or adapters"
"""Tests, as -k chooses them, whose tensors are allocated by themselves."""


def variables() -> Mapping[str, str]:
    """Environment of a process that loads it: the sanitizers come before all else."""
    libraries = (_kept_by_the_compiler(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so.6"))
    return {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}


def _kept_by_the_compiler(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return found.strip()
