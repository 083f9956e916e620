"""Bans module-level state, so that two engines on two platforms can run in one process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.checks.sources import Source, python_sources

_CONTAINERS = frozenset({"dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"})
_CELLS = frozenset({"ContextVar", "local", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary"})


def module_state(root: Path) -> list[str]:
    """`global` statements in core, and module-level names that start empty to be filled later."""
    return [
        finding
        for source in python_sources(root, "core/**/*.py")
        for finding in (*_global_statements(source), *_empty_cells(source))
    ]


def _global_statements(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield source.at(node.lineno, f"global {', '.join(node.names)}: hand the object over instead")


def _empty_cells(source: Source) -> Iterator[str]:
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if _is_empty_cell(value):
            names = ", ".join(ast.unparse(target) for target in targets)
            yield source.at(statement.lineno, f"{names} starts empty at module level: hand the object over instead")


def _is_empty_cell(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Constant):
        return value.value is None
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name in _CELLS or (name in _CONTAINERS and not any(_is_content(argument) for argument in value.args))
    return False


def _is_content(argument: ast.expr) -> bool:
    """Whether an argument is initial content, not a factory as in defaultdict(list)."""
    return not (isinstance(argument, ast.Name) and argument.id in _CONTAINERS)
