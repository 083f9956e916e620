"""The Python files of a tree, parsed, and the names that their imports load."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """One parsed file; `name` is its path below the root that was searched."""

    name: str
    text: str
    tree: ast.Module

    def at(self, line: int, finding: str) -> str:
        return f"{self.name}:{line}: {finding}"


@dataclass(frozen=True)
class Import:
    """A module or member that a statement names in full, and whether a type checker alone runs it."""

    target: str
    line: int
    type_checking: bool


def python_sources(root: Path, *patterns: str) -> Iterator[Source]:
    """Parse the files that the glob patterns find below root, in the order of their names."""
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        text = path.read_text(encoding="utf-8")
        yield Source(path.relative_to(root).as_posix(), text, ast.parse(text, filename=str(path)))


def imports(tree: ast.Module, package: str = "") -> Iterator[Import]:
    """Every import of a module, inside functions too; `package` is what a relative import starts from.

    `from a import b` names a.b, whether b is a module or a member of one.
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
