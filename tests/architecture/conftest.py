"""A copy of the tree that a test may break."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Break = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def root() -> Path:
    """The tree itself."""
    return ROOT


@pytest.fixture(scope="session")
def _copied_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    without_caches = shutil.ignore_patterns("__pycache__", "*.safetensors", "build", "dist")
    for folder in ("core", "platforms"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=without_caches)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


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
