"""Downloads the packages that a machine with torch and transformers but no network needs for Tessera: `make
gpu-wheels`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
BESIDES = ("hatchling", "pytest")  # for building and testing there
# Provided by the machine, matching its devices. The packages of this tree are built there.
LEFT_OUT = frozenset({"torch", "triton", "transformers", "numpy"})
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TARGET = {
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}


def wanted() -> list[str]:
    """The dependencies of core, its extra for generating packages, and BESIDES."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["plugin"], *BESIDES]


def closure(wanted: Sequence[str]) -> list[str]:
    """Names of all dependencies on the target, without LEFT_OUT and what only those need."""
    waiting, seen = [Requirement(text) for text in wanted], set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen or key[0] in LEFT_OUT:
            continue
        seen.add(key)
        waiting += [
            found
            for found in map(Requirement, _requires(requirement.name))
            if any(_applies(found, extra) for extra in ("", *requirement.extras))
        ]
    return sorted({name for name, _ in seen})


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**TARGET, "extra": extra})


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # for another system: pip knows its version, but its dependencies are unknown here


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if line and not line.startswith("#")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("into", type=Path, nargs="?", default=ROOT / ".whl")
    into = parser.parse_args().into
    pinned = pins()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, "--dest", str(into)]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    done = subprocess.run([*command, *(pinned.get(name, name) for name in closure(wanted()))], check=False)
    if done.returncode == 0:
        wheels = list(into.glob("*.whl"))
        print(f"{into}: {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f} MB")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
