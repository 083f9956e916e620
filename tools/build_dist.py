"""Builds the wheels of core and every platform package into dist/, and checks that they contain all files of the
tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def distributions(root: Path) -> dict[Path, Path]:
    """Every folder with a pyproject.toml, and the package that its wheel contains."""
    platforms = sorted((root / "platforms").glob("*/pyproject.toml"))
    return {
        root: root / "core/tessera",
        **{path.parent: next(path.parent.glob("tessera_*")) for path in platforms},
    }


def missing_files(wheel: Path, package: Path) -> list[str]:
    """Files tracked by git that the wheel lacks, in the package and in the template that core includes."""
    wanted = {f"{package.name}/{name}" for name in _kept(package)}
    template = package.parents[1] / "plugins_template"
    if package.name == "tessera" and template.is_dir():
        wanted |= {f"tessera/plugins_template/{name}" for name in _kept(template)}
    with zipfile.ZipFile(wheel) as archive:
        return sorted(wanted - set(archive.namelist()))


def _kept(folder: Path) -> list[str]:
    """Files tracked by git, relative to the folder."""
    command = ["git", "ls-files", "-z", "."]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name]


def build(root: Path, into: Path) -> dict[Path, Path]:
    """Builds one wheel per distribution with the environment's own hatchling. Returns wheel -> package."""
    shutil.rmtree(into, ignore_errors=True)
    wheels = {}
    for folder, package in distributions(root).items():
        before = set(into.glob("*.whl"))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", str(into), str(folder)], check=True)
        (wheel,) = set(into.glob("*.whl")) - before
        wheels[wheel] = package
    return wheels


def main() -> int:
    status = 0
    for wheel, package in build(ROOT, ROOT / "dist").items():
        missing = missing_files(wheel, package)
        status |= bool(missing)
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB")
        for name in missing:
            print(f"  lacks {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
