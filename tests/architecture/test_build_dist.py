from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tools.build_dist import build_sdist, distributions, is_reproducible, missing_files, missing_in_sdist


def test_core_and_every_platform_package_are_built(root: Path) -> None:
    packages = {package.name for package in distributions(root).values()}
    assert packages == {"tessera", *(path.name for path in (root / "platforms").glob("*/tessera_*"))}


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    package = tmp_path / "core" / "tessera"
    (package / "demo").mkdir(parents=True)
    template = tmp_path / "plugins_template" / "package"
    template.mkdir(parents=True)
    (template / "README.md").touch()
    for name in ("__init__.py", "py.typed", "demo/model.safetensors", ".gitignore", "left.log"):
        (package / name).touch()
    (package / ".gitignore").write_text("*.log\n.gitignore\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    wheel = tmp_path / "tessera_llm-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tessera/__init__.py", "")
    assert missing_files(wheel, package) == [
        "tessera/demo/model.safetensors",
        "tessera/plugins_template/package/README.md",
        "tessera/py.typed",
    ]


def test_a_file_that_the_source_archive_lacks_is_named(tmp_path: Path) -> None:
    package = tmp_path / "tessera_chip"
    package.mkdir()
    for name in ("__init__.py", "kernels.py"):
        (package / name).touch()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    sdist = tmp_path / "tessera_chip-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(package / "__init__.py", "tessera_chip-1/tessera_chip/__init__.py")
    assert missing_in_sdist(sdist, package) == ["tessera_chip/kernels.py"]


def test_a_wheel_of_other_files_than_the_archive_s_is_found(root: Path, tmp_path: Path) -> None:
    source = shutil.copytree(root / "platforms/xla", tmp_path / "xla")
    sdist = build_sdist(source, tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert is_reproducible(sdist, wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tessera_xla/more.py", "")
    assert not is_reproducible(sdist, wheel)
