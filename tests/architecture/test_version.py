"""One command sets the version in every file that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.version import InvalidVersion

from tessera._version import __version__
from tools.version import CHART, PLACES, current, elsewhere, semantic, set_version


def test_no_other_file_names_the_version(root: Path) -> None:
    assert current(root) == __version__
    assert elsewhere(root) == []


def test_every_file_that_names_it_gets_the_new_one(root: Path, tmp_path: Path) -> None:
    files = [path.relative_to(root) for place in PLACES for path in root.glob(place)]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, tmp_path / file)
    changed = set_version(tmp_path, "7.8.9rc2")
    assert sorted(path.relative_to(tmp_path) for path in changed) == sorted(files)
    assert current(tmp_path) == "7.8.9rc2"
    for file in files:
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert __version__ not in text, file
        assert "7.8.9rc2" in text, file
    chart = (tmp_path / CHART).read_text(encoding="utf-8")
    assert "version: 7.8.9-rc.2\nappVersion: 7.8.9rc2\n" in chart
    set_version(tmp_path, __version__)
    assert all((tmp_path / file).read_bytes() == (root / file).read_bytes() for file in files)


@pytest.mark.parametrize(
    ("version", "spelling"),
    [("0.1.0", "0.1.0"), ("0.3.0.dev1", "0.3.0-dev.1"), ("1.2", "1.2.0"), ("2.0a1", "2.0.0-a.1")],
)
def test_helm_has_a_spelling_of_its_own(version: str, spelling: str) -> None:
    assert semantic(version) == spelling


def test_what_is_no_version_changes_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "core/tessera").mkdir(parents=True)
    shutil.copy(root / "core/tessera/_version.py", tmp_path / "core/tessera")
    (tmp_path / "deploy/helm/tessera").mkdir(parents=True)
    shutil.copy(root / CHART, tmp_path / CHART)
    with pytest.raises(InvalidVersion):
        set_version(tmp_path, "latest")
    assert current(tmp_path) == __version__
