"""A Python for aarch64 with torch and the wheels of the tree, run by QEMU: in a folder, apart from this machine's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.build_dist import NATIVE, build_wheel

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
TORCH = "2.10.0"
"""Its wheel for aarch64 is one without CUDA; that of 2.13 is not."""
RELEASE, PYTHON = "bookworm", "3.11"
"""Of Debian, and its Python."""
PACKAGES = ("libgomp1", "libpython3.11-stdlib", "libstdc++6", f"python{PYTHON}", f"python{PYTHON}-minimal")
LIBRARIES = "lib/aarch64-linux-gnu"
ABIS = ("cp311", "abi3", "none")
OF_THIS_MACHINE = ("nvidia-", "cuda-", "triton")
GLIBC = range(17, 37)
"""Minor versions of the C library that wheels may be for: Debian's is 2.36."""


class UnavailableError(Exception):
    """Something is not to be had here; the text says what."""


def make() -> Path:
    """Makes what is not there, and installs the tree's wheels. Returns the program that runs Python. Raises
    UnavailableError."""
    root, site = FOLDER / "root", FOLDER / "site"
    if not (root / f"usr/bin/python{PYTHON}").exists():
        _download_python(root)
    shutil.rmtree(site, ignore_errors=True)
    shutil.rmtree(FOLDER / "dist", ignore_errors=True)
    _install(site, [build_wheel(folder, FOLDER / "dist", CXX=COMPILER) for folder in (ROOT, ROOT / NATIVE)])
    return _program(root, site)


def _download_python(root: Path) -> None:
    """By apt, with a state of its own, so that this machine's is not touched."""
    apt = FOLDER / "apt"
    for part in ("lists/partial", "archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keyring}] http://deb.debian.org/debian {RELEASE} main\n")
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",  # another user may not write here
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    what = f"Python {PYTHON} for arm64 from Debian {RELEASE}"
    run(what, [*command, "update"])
    run(what, [*command, "install", "--no-install-recommends", "--download-only", *PACKAGES])
    unpacked = FOLDER / "unpacked"
    for archive in sorted((apt / "archives").glob("*.deb")):
        run(what, ["dpkg", "-x", str(archive), str(unpacked)])
    unpacked.rename(root)


def _install(site: Path, wheels: Sequence[Path]) -> None:
    """pip judges what is needed where by its own machine, so what this environment has is named instead."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in reversed(GLIBC)]
    python = [f"--python-version={PYTHON}", "--implementation=cp", *(f"--abi={abi}" for abi in ABIS)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    target = [*platforms, "--platform=manylinux2014_aarch64", *python, "--only-binary=:all:", f"--target={site}"]
    run("wheels for aarch64", [*pip, *target, f"torch=={TORCH}", *dependencies(), *map(str, wheels)])


def run(what: str, command: Sequence[str]) -> None:
    """what: is made or downloaded by the command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise UnavailableError(f"{what}: not available; {command[0]} said: {said[-1]}")


def dependencies() -> list[str]:
    """What the packages need in this environment, besides each other, torch and what is for this machine alone."""
    needed, names = dict[str, str](), ["tessera-llm", "tessera-cpu", "torch"]
    while names:
        name = canonicalize_name(names.pop())
        if name in needed or name.startswith(OF_THIS_MACHINE):
            continue
        found = distribution(name)
        needed[name] = found.version
        required = map(Requirement, found.requires or ())
        names += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    ours = ("tessera-llm", "tessera-cpu", "torch")
    return [f"{name}=={version}" for name, version in sorted(needed.items()) if name not in ours]


def _program(root: Path, site: Path) -> Path:
    """Python starts other Pythons by its own name, so it is called as what this machine can run."""
    program = FOLDER / "python"
    libraries = f"{root}/{LIBRARIES}:{root}/usr/{LIBRARIES}"
    program.write_text(
        f"""#!/bin/sh
exec env -u LD_LIBRARY_PATH PYTHONHOME={root}/usr PYTHONPATH={site} {EMULATOR} -cpu max,sve=off -L {root} \\
    -E LD_LIBRARY_PATH={libraries} {root}/usr/bin/python{PYTHON} "$@"
"""
    )
    program.chmod(0o755)
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(program)!r}\n")
    return program
