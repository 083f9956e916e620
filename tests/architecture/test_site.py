"""What the check of the documentation's site finds; the stage `site` builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.site.__main__ import HERE, PACKAGES, PINS
from tools.site.check import Site

HEAD = '<html><head><link href="style.css"></head><body><article>'


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The folder of a site of two pages without a problem."""
    (tmp_path / "style.css").write_text("")
    (tmp_path / "index.html").write_text(f'{HEAD}<h2 id="a">A</h2><a href="other.html#b">b</a> <a href="#a">a</a>')
    (tmp_path / "other.html").write_text(f'{HEAD}<h2 id="b">B</h2><a href="https://example.com">x</a><a href=".">i</a>')
    return tmp_path


def problems(folder: Path) -> list[str]:
    site = Site(folder)
    return [*site.broken_links(), *site.loaded_from_elsewhere()]


def test_a_whole_site_has_none(built: Path) -> None:
    assert problems(built) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("other.html#b", "other.html#c", "index.html: other.html#c is no heading of that page"),
        ("other.html#b", "none.html", "index.html: none.html is no file of the site"),
        ("#a", "#z", "index.html: #z is no heading of that page"),
        ("style.css", "lost.css", "index.html: lost.css is no file of the site"),
        (
            "style.css",
            "https://fonts.example/a.css",
            "index.html: the browser would load https://fonts.example/a.css",
        ),
    ],
)
def test_each_is_named(built: Path, old: str, new: str, problem: str) -> None:
    page = built / "index.html"
    page.write_text(page.read_text().replace(f'"{old}"', f'"{new}"'))
    assert problems(built) == [problem]


def test_a_list_that_the_site_lost_is_named(built: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "other.md").write_text("## B\n")
    assert list(Site(built).read_otherwise(repository)) == []
    (repository / "other.md").write_text("## B\n\nText:\n- one\n- two\n")
    assert list(Site(built).read_otherwise(repository)) == ["other.html: 0 of <li>, where GitHub shows 2"]


def test_its_environment_is_pinned() -> None:
    pins = "\n".join(file.read_text(encoding="utf-8") for file in PINS)
    assert all(re.search(rf"^{package}==", pins, re.MULTILINE) for package in PACKAGES)
    assert HERE / "constraints.txt" in PINS
