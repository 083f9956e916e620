"""docs/plugins/guide.md is followed from its first step to its last, as the engineer who reads it would."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from tests.docs.steps import Shell, blocks, follow
from tests.e2e.served import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plugins/guide.md").read_text(encoding="utf-8")
PACKAGES = ("tessera-mychip", "tessera-myasic")
STEPS = 20  # at least


def programs(folder: Path) -> Path:
    """A folder of those that the page calls, each of this Python."""
    folder.mkdir()
    for name, begins in (("tessera", "-m tessera.cli"), ("pip", "-m pip"), ("pytest", "-m pytest"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {begins} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_each_step_does_what_the_page_says(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    # pip installs what was generated, and no more, beside the environment that runs the test.
    offline = {"PIP_TARGET": str(site), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    found = [site, *(work / package for package in PACKAGES), ROOT / "core", ROOT / "platforms/cpu"]
    path = [str(programs(tmp_path / "bin")), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        **os.environ,
        **offline,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": os.pathsep.join(map(str, found)),
        "PATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    page = PAGE.replace("8000", str(free_port()))
    with Shell(work, environment) as shell:
        assert follow(page, shell) >= STEPS


def test_what_is_not_run_is_only_the_installation_and_its_extra_exists() -> None:
    (install,) = (block for block in blocks(PAGE) if block.kind != "console" and "title" not in block.facts)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"tessera-llm\[([\w,]+)\]", "\n".join(install.lines))
    assert named
    assert set(",".join(named).split(",")) <= set(extras)
