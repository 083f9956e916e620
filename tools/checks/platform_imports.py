"""Allows platform packages to import only tessera.platform, like a package from outside this repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.checks.sources import Source, imports, python_sources

# A library of kernels that registers nothing and is shared by the packages of several vendors.
KERNEL_LIBRARIES = frozenset({"tessera_triton"})


def platform_imports(root: Path) -> list[str]:
    """Run-time imports of another platform, or of core beyond tessera.platform (for tests, also tessera.testing)."""
    findings: list[str] = []
    for package in sorted((root / "platforms").glob("*/tessera_*")):
        allowed = ("tessera.platform", package.name, *KERNEL_LIBRARIES)
        for source in python_sources(root, f"{package.relative_to(root).as_posix()}/**/*.py"):
            findings += _foreign_imports(source, allowed)
        tests = package.parent.relative_to(root).as_posix()
        for source in python_sources(root, f"{tests}/tests/**/*.py"):
            findings += _foreign_imports(source, (*allowed, "tessera.testing"))
    return findings


def _foreign_imports(source: Source, allowed: tuple[str, ...]) -> Iterator[str]:
    package = ".".join(Path(source.name).parts[2:-1])
    found = [(entry.target, entry.line) for entry in imports(source.tree, package) if not entry.type_checking]
    for target, line in (*found, *_dynamic_imports(source.tree)):
        if not target.partition(".")[0].startswith("tessera"):
            continue
        if not any(target == name or target.startswith(f"{name}.") for name in allowed):
            yield source.at(line, f"imports {target}; a platform package may import {', '.join(allowed)}")


def _dynamic_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module" and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, node.lineno
