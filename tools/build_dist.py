"""Builds the wheels of core and every platform package into dist/, and checks that they contain all files of the
tree. The wheel with native kernels is also built for each other architecture that there is a cross compiler for."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = Path("platforms/cpu")
"""The package whose wheel depends on the architecture."""
ARCHITECTURES = ("x86_64", "aarch64")
"""Those that wheels are built for."""


def distributions(root: Path) -> dict[Path, Path]:
    """Every folder with a pyproject.toml, and the package that its wheel contains."""
    platforms = sorted((root / "platforms").glob("*/pyproject.toml"))
    return {
        root: root / "core/tessera",
        **{path.parent: next(path.parent.glob("tessera_*")) for path in platforms},
    }


def missing_files(wheel: Path, package: Path) -> list[str]:
    """Files tracked by git that the wheel lacks, in the package and in the template that core includes."""
    wanted = {f"{package.name}/{name}" for name in _tracked_files(package)}
    template = package.parents[1] / "plugins_template"
    if package.name == "tessera" and template.is_dir():
        wanted |= {f"tessera/plugins_template/{name}" for name in _tracked_files(template)}
    with zipfile.ZipFile(wheel) as archive:
        return sorted(wanted - set(archive.namelist()))


def _tracked_files(folder: Path) -> list[str]:
    """Those of git, relative to the folder."""
    command = ["git", "ls-files", "-z", "."]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name]


def build(root: Path, into: Path, cross_compilers: Sequence[str] = ()) -> dict[Path, Path]:
    """Builds one wheel per distribution with the environment's own hatchling, and one of NATIVE per cross compiler.
    Returns wheel -> package."""
    shutil.rmtree(into, ignore_errors=True)
    wheels = {}
    for folder, package in distributions(root).items():
        wheels[build_wheel(folder, into)] = package
        for compiler in cross_compilers if folder == root / NATIVE else ():
            wheels[build_wheel(folder, into, CXX=compiler)] = package
    return wheels


def cross_compilers() -> list[str]:
    """Those that are here, for ARCHITECTURES other than this machine's."""
    others = [f"{name}-linux-gnu-g++" for name in ARCHITECTURES if name != platform.machine()]
    return [name for name in others if shutil.which(name)]


def build_wheel(folder: Path, into: Path, **variables: str) -> Path:
    """variables: more of the environment, such as CXX."""
    before = set(into.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, **variables}
    subprocess.run([*command, "--wheel-dir", str(into), str(folder)], env=environment, check=True)
    (wheel,) = set(into.glob("*.whl")) - before
    return wheel


def main() -> int:
    status = 0
    for wheel, package in build(ROOT, ROOT / "dist", cross_compilers()).items():
        missing = missing_files(wheel, package)
        status |= bool(missing)
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB")
        for name in missing:
            print(f"  lacks {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
