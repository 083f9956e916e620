"""A copy of the tree that a test may break, and trees of one file for checks that look at each file alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Break = Callable[[str, str], Path]

NOT_COPIED = shutil.ignore_patterns("*.safetensors", "build", "dist")
"""What no test needs of a copy. Compiled modules are copied: they save each process that imports the copy seconds."""


@pytest.fixture(scope="session")
def root() -> Path:
    """The tree itself."""
    return ROOT


@pytest.fixture(scope="session")
def _copied_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("core", "platforms"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=NOT_COPIED)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.fixture
def alone(tmp_path: Path) -> Break:
    """Call it with a path and a text: the root of a tree of this file comes back, which also has those of earlier
    calls."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def broken(_copied_tree: Path) -> Iterator[Break]:
    """Call it with a path and a text: the text ends that file of a copy of the tree, whose root comes back."""
    before: dict[Path, str | None] = {}

    def append(name: str, text: str) -> Path:
        path = _copied_tree / name
        before.setdefault(path, path.read_text(encoding="utf-8") if path.exists() else None)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        return _copied_tree

    yield append
    for path, text in before.items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
