from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from tools.build_dist import distributions, missing_files


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
