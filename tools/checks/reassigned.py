"""Bans patching: a platform package changes no attribute of a module, class or function that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.checks.sources import Source, imports, python_sources

_GIVES_ANOTHERS = frozenset({"__import__", "import_module", "type", "vendor_object"})
"""Calls that give a module, a class, or what is in one."""
_SETS = frozenset({"__delattr__", "__setattr__", "delattr", "setattr"})
_CHANGES = frozenset({"clear", "pop", "popitem", "setdefault", "update"})
"""Of a dictionary of attributes."""


def reassigned(root: Path) -> list[str]:
    """Assignments to attributes of what is imported, in the platform packages. Their tests may."""
    packages = sorted((root / "platforms").glob("*/tessera_*"))
    return [finding for package in packages for finding in reassigned_by(package, root)]


def reassigned_by(package: Path, root: Path) -> list[str]:
    sources = list(python_sources(root, f"{package.relative_to(root).as_posix()}/**/*.py"))
    modules = {found.target.partition(".")[0] for source in sources for found in imports(source.tree)}
    return [finding for source in sources for finding in _Reader(source, modules).findings()]


class _Reader:
    """Of one file. modules: names of modules that the package imports, by which they are handed over too, as
    `self.torch`."""

    def __init__(self, source: Source, modules: set[str]) -> None:
        self.source = source
        self.names = set(modules)
        nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        self.names |= {alias.asname or alias.name.partition(".")[0] for node in nodes for alias in node.names}
        self.names |= {name for name in self._called_so() if name is not None}

    def findings(self) -> Iterator[str]:
        for found in imports(self.source.tree):
            if found.target.startswith("unittest.mock"):
                yield self.source.at(found.line, f"imports {found.target}, which patches")
        for node in ast.walk(self.source.tree):
            yield from (self._finding(target) for target in _targets(node) if self._changes_anothers(target))
            if isinstance(node, ast.Call) and self._call_changes_anothers(node):
                yield self._finding(node)

    def _called_so(self) -> Iterator[str | None]:
        """Other names of what is imported: `npu = import_module("torch_npu")`, `nn = torch.nn`."""
        for node in ast.walk(self.source.tree):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is not None and self._is_anothers(value):
                yield from (_last_name(target) for target in _targets(node))

    def _is_anothers(self, node: ast.expr) -> bool:
        """Whether it is imported, or in what is. What a call of it returns is the package's own."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Attribute):
            return node.attr in self.names or self._is_anothers(node.value)
        if isinstance(node, ast.Subscript):
            return self._is_anothers(node.value)
        if not isinstance(node, ast.Call):
            return False
        name = _last_name(node.func)
        return name in _GIVES_ANOTHERS or (name == "getattr" and any(map(self._is_anothers, node.args[:1])))

    def _changes_anothers(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Attribute):
            return self._is_anothers(target.value)
        return isinstance(target, ast.Subscript) and self._holds_attributes(target.value)

    def _holds_attributes(self, node: ast.expr) -> bool:
        """`vars(module)`, `module.__dict__`, `sys.modules`."""
        if isinstance(node, ast.Call):
            return _last_name(node.func) == "vars" and any(map(self._is_anothers, node.args))
        return _last_name(node) in ("__dict__", "modules") and self._is_anothers(node)

    def _call_changes_anothers(self, call: ast.Call) -> bool:
        name = _last_name(call.func)
        if name in _SETS:
            return any(map(self._is_anothers, call.args[:1]))
        return name in _CHANGES and isinstance(call.func, ast.Attribute) and self._holds_attributes(call.func.value)

    def _finding(self, node: ast.expr) -> str:
        return self.source.at(node.lineno, f"{ast.unparse(node)} changes what is another's: derive from it or wrap it")


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to or deletes."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found += node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
        found.append(node.target)
    elif isinstance(node, ast.withitem):
        found.append(node.optional_vars)
    while found:
        target = found.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            found = [*target.elts, *found]
        elif isinstance(target, ast.Starred):
            found.insert(0, target.value)
        elif target is not None:
            yield target
