"""Tries the library of Triton kernels with other versions of Triton than constraints.txt has: `python -m
tools.triton_versions 3.6.0 3.9.0`. Each is downloaded into build/triton-VERSION. Every kernel must compile for every
device and fit its shared memory, and the interpreter must give the ops' results; registers differ from version to
version, and are not compared. The interpreter of 3.6 does not run with NumPy 2.4, so that version only compiles."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = ("3.6.0", "3.8.0", "3.9.0")
"""That of torch 2.11, which the machines with GPUs have, and the newest."""
INTERPRETING = (3, 7)
"""The first version whose interpreter runs with NumPy 2.4."""
LATER = (3, 8)
"""The first version that compiles for the devices that tools.triton_targets keeps for later."""
TESTS = ("platforms/triton/tests", "tests/platforms")


def folder_of(version: str) -> Path:
    """Downloads a version, unless it is there. Raises CalledProcessError."""
    folder = ROOT / f"build/triton-{version}"
    if not (folder / f"triton-{version}.dist-info").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), f"triton=={version}"], check=True)
    return folder


def commands(version: str, targets: Sequence[str]) -> list[list[str]]:
    """What is run with a version."""
    only = [part for target in targets for part in ("--target", target)]
    compiling = [sys.executable, "-m", "tools.triton_targets", "--no-table", *only]
    interpreting = [sys.executable, "-m", "pytest", *TESTS, "--quiet", "--nightly=none", "-n", "2", "--dist=loadfile"]
    number = tuple(map(int, version.split(".")[:2]))
    if number >= LATER and not targets:
        compiling.append("--later")
    return [compiling, interpreting] if number >= INTERPRETING else [compiling]


def tried(version: str, targets: Sequence[str]) -> bool:
    """Whether all that is run with a version succeeded."""
    search = os.pathsep.join([str(folder_of(version)), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search}
    asked = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    found = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    print(f"---- Triton {found}", flush=True)
    if found != version:
        print(f"Triton {version} was asked for; check PYTHONPATH.")
        return False
    statuses = [
        subprocess.run(one, cwd=ROOT, env=environment, check=False).returncode for one in commands(version, targets)
    ]
    return not any(statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=OTHERS, help=f"such as 3.9.0; default: {' '.join(OTHERS)}")
    parser.add_argument("--target", action="append", default=[], help="only this device; may be repeated")
    asked = parser.parse_args()
    wrong = [version for version in asked.versions if not tried(version, asked.target)]
    print(f"wrong: {' '.join(wrong)}" if wrong else "all of them are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
