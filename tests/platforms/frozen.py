"""A plugin's distribution, built, unpacked and tried at bronze by an interpreter that has it beside core."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import hatchling.build
import pytest

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "fixtures" / "frozen"
CONFORMANCE = "from tessera.cli import main; main()"


def frozen_plugins(folder: Path = FROZEN) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/pyproject.toml"))


def bronze(plugin: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`tessera conformance --level bronze` of the platform that has the folder's name. site: an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(plugin)
        wheel = site / hatchling.build.build_wheel(str(site))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "core"), str(site)))}
    asked = ["conformance", "--platform", plugin.name, "--level", "bronze"]
    command = [sys.executable, "-P", "-c", CONFORMANCE, *asked]
    return subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, timeout=300, check=False)
