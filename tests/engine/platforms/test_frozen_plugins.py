"""Plugins of former days pass bronze on the core of today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tessera.platform import API_LEVELS
from tests.platforms.frozen import FROZEN, ROOT, bronze, frozen_plugins

SERVED = ROOT / "tests" / "fixtures" / "plugins" / "served"


@pytest.mark.parametrize("plugin", frozen_plugins(), ids=lambda plugin: plugin.name)
def test_a_frozen_plugin_passes_bronze(plugin: Path, tmp_path: Path) -> None:
    done = bronze(plugin, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_there_is_one_for_each_level_that_was_promised() -> None:
    assert bool(frozen_plugins()) == any(API_LEVELS.values())
    assert (FROZEN / "README.md").is_file()


def test_one_is_found_and_passes(tmp_path: Path) -> None:
    shutil.copytree(SERVED, tmp_path / "frozen" / "served")
    (plugin,) = frozen_plugins(tmp_path / "frozen")
    done = bronze(plugin, _folder(tmp_path / "site"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "served: bronze, 0 of" in done.stdout


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('{"platform": 0}', '{"platform": 3}', "it was written for level 3 of platform, core has 0"),
        ('"served", "fixture', '"other", "fixture', "There is no platform 'served'"),
    ],
)
def test_one_that_does_not_is_a_failure(tmp_path: Path, before: str, after: str, what: str) -> None:
    plugin = tmp_path / "served"
    shutil.copytree(SERVED, plugin)
    module = plugin / "fixture_served.py"
    text = module.read_text(encoding="utf-8")
    assert before in text
    module.write_text(text.replace(before, after), encoding="utf-8")
    done = bronze(plugin, _folder(tmp_path / "site"))
    assert done.returncode == 5
    assert what in done.stderr


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
