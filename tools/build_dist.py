"""Builds the wheels and source archives of core and every platform package into dist/, with their hashes in
SHA256SUMS, and checks that they contain all files of the tree, and that a wheel built from its source archive, without
an index, is the same to the byte. The wheel with native kernels is also built for each other architecture that there is
a cross compiler for; it is not built twice, as that takes ten minutes."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
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


def build_sdist(folder: Path, into: Path) -> Path:
    before = set(into.glob("*.tar.gz"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(into)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (sdist,) = set(into.glob("*.tar.gz")) - before
    return sdist


def missing_in_sdist(sdist: Path, package: Path) -> list[str]:
    """Files of the package that git tracks and the source archive lacks."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    folder = "core/tessera" if package.name == "tessera" else package.name
    return sorted({f"{folder}/{name}" for name in _tracked_files(package)} - set(names))


def is_reproducible(sdist: Path, wheel: Path) -> bool:
    """Whether pip makes the same wheel from the source archive alone."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*command, "--wheel-dir", folder, str(sdist)], check=True)
        (again,) = Path(folder).glob("*.whl")
        return again.name == wheel.name and digest(again) == digest(wheel)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def problems(folder: Path, package: Path, wheels: Sequence[Path], sdist: Path) -> list[str]:
    """What is wrong with the wheels and the source archive of one distribution."""
    lines = [f"{wheel.name} lacks {name}" for wheel in wheels for name in missing_files(wheel, package)]
    lines += [f"{sdist.name} lacks {name}" for name in missing_in_sdist(sdist, package)]
    if folder != ROOT / NATIVE and not all(is_reproducible(sdist, wheel) for wheel in wheels):
        lines.append(f"{sdist.name} makes another wheel")
    return lines


def main() -> int:
    into = ROOT / "dist"
    wheels = build(ROOT, into, cross_compilers())
    lines = []
    for folder, package in distributions(ROOT).items():
        own = [wheel for wheel, owner in wheels.items() if owner == package]
        lines += problems(folder, package, own, build_sdist(folder, into))
    files = sorted(path for path in into.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    (into / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in files), encoding="utf-8")
    for path in files:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB")
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
