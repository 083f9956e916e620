"""A plugin's package in a folder: its pyproject.toml, its parsed Python files, and findings about them."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tessera.errors import ConfigError

MAX_FILES = 2000
_PASSED_OVER = frozenset({"build", "dist", "node_modules", "__pycache__"})


@dataclass(frozen=True, order=True)
class Finding:
    """file: relative to the package's folder. line: 0 for the whole file. todo: what to do."""

    file: str
    line: int
    what: str
    todo: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.what}; {self.todo}"


@dataclass(frozen=True)
class SourceFile:
    """names: every imported name, at any depth, with its full dotted name ("tessera.platform.Platform"). type_only: ids
    of the nodes that only a type checker sees."""

    file: str
    module: str
    tree: ast.Module
    is_test: bool
    names: Mapping[str, str] = field(default_factory=dict)
    type_only: frozenset[int] = frozenset()

    def at(self, node: ast.AST, what: str, todo: str) -> Finding:
        return Finding(self.file, getattr(node, "lineno", 0), what, todo)

    def full_name(self, node: ast.AST) -> str | None:
        """The dotted name of an expression that begins with an imported name, otherwise None."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return None
        return ".".join([self.names[node.id], *reversed(parts)])

    def nodes(self) -> Iterator[ast.AST]:
        """The nodes that are executed."""
        return (node for node in ast.walk(self.tree) if id(node) not in self.type_only)


@dataclass(frozen=True)
class Package:
    """project: pyproject.toml, empty if there is none. broken: findings for files that cannot be parsed."""

    folder: Path
    project: Mapping[str, Any]
    sources: tuple[SourceFile, ...]
    broken: tuple[Finding, ...]

    @cached_property
    def entries(self) -> Mapping[str, str]:
        """Its entry points in the group tessera: name to value."""
        found = self.project.get("project", {}).get("entry-points", {}).get("tessera", {})
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    def source_of(self, module: str) -> SourceFile | None:
        return next((source for source in self.sources if source.module == module), None)


def read_package(folder: Path) -> Package:
    """Raises ConfigError if there is no such folder, or no Python file in it."""
    if not folder.is_dir():
        raise ConfigError(f"'{folder}' is no folder; name the one that holds the plugin's pyproject.toml.")
    broken: list[Finding] = []
    sources = []
    for path in _python_files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            tree = ast.parse(path.read_bytes(), filename=name)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 0
            broken.append(Finding(name, line, f"is not Python ({str(error)[:80]})", "repair it"))
            continue
        sources.append(_source(name, tree))
    if not sources and not broken:
        raise ConfigError(f"'{folder}' holds no Python file; name the folder that holds the plugin's pyproject.toml.")
    return Package(folder, _project(folder, broken), tuple(sources), tuple(broken))


def _python_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _PASSED_OVER and not name.startswith("."))
        found += [Path(place, name) for name in sorted(files) if name.endswith(".py")]
        if len(found) > MAX_FILES:
            raise ConfigError(f"'{folder}' holds more than {MAX_FILES} Python files; name the plugin's own folder.")
    return found


def _project(folder: Path, broken: list[Finding]) -> Mapping[str, Any]:
    try:
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        broken.append(Finding("pyproject.toml", 0, "there is none", "a plugin is found through its entry point there"))
    except (ValueError, OSError) as error:
        broken.append(Finding("pyproject.toml", 0, f"cannot be read ({str(error)[:80]})", "repair it"))
    return {}


def _source(name: str, tree: ast.Module) -> SourceFile:
    parts = name.removesuffix(".py").split("/")
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    package = module if parts[-1] == "__init__" else module.rpartition(".")[0]
    type_only = frozenset(
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    )
    return SourceFile(name, module, tree, "tests" in parts[:-1], dict(_bound(tree, package)), type_only)


def _bound(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The absolute name of the module that a statement imports from."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
