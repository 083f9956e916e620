"""Parses the Python files of a tree, and lists the names that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """One parsed file. name: its path relative to the root searched."""

    name: str
    text: str
    tree: ast.Module

    def at(self, line: int, finding: str) -> str:
        return f"{self.name}:{line}: {finding}"


@dataclass(frozen=True)
class Import:
    """The full name of an imported module or member, and whether only a type checker imports it."""

    target: str
    line: int
    type_checking: bool


def python_sources(root: Path, *patterns: str) -> Iterator[Source]:
    """Parses the files below root that match the glob patterns, sorted by name."""
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        text = path.read_text(encoding="utf-8")
        yield Source(path.relative_to(root).as_posix(), text, ast.parse(text, filename=str(path)))


def imports(tree: ast.Module, package: str = "") -> Iterator[Import]:
    """All imports of a module, including those inside functions. package: the base of relative imports.

    `from a import b` yields a.b, whether b is a module or a member of one.
    """
    guarded = {id(node) for block in ast.walk(tree) if _is_type_checking(block) for node in _body_nodes(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in guarded)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}" if base else alias.name, node.lineno, id(node) in guarded)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _body_nodes(block: ast.AST) -> Iterator[ast.AST]:
    assert isinstance(block, ast.If)
    for statement in block.body:
        yield from ast.walk(statement)
