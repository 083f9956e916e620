"""What a plugin may import, and what it may not do to core."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tessera.plugins.check.package import Finding, SourceFile

_UNSAFE = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"})
_BUILTINS = frozenset({"eval", "exec"})
_SETTERS = frozenset({"setattr", "delattr"})
_PATCHERS = ("unittest.mock.patch", "mock.patch")
_USE = "import what tessera.platform offers, or ask for what it lacks"
_LEAVE = "core's objects are not a plugin's to change; override what the contract has for it"
_PLAIN = "keep plain data (JSON, safetensors) and plain code"


def foreign_imports(source: SourceFile) -> Iterator[Finding]:
    """Modules of core beyond the contracts."""
    for node in source.nodes():
        for target in _imported(node, source):
            if _is_of(target, "tessera") and not _allowed(target, source.is_test):
                yield source.at(node, f"imports {target}", _USE)


def _allowed(target: str, is_test: bool) -> bool:
    return _is_of(target, "tessera.platform") or (is_test and _is_of(target, "tessera.testing"))


def _imported(node: ast.AST, source: SourceFile) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        named = ast.unparse(node.func).rpartition(".")[2]
        if named in ("import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def unsafe_code(source: SourceFile) -> Iterator[Finding]:
    """Code that runs whatever it is given."""
    for node in source.nodes():
        for target in _imported(node, source):
            if target.partition(".")[0] in _UNSAFE:
                yield source.at(node, f"imports {target.partition('.')[0]}", _PLAIN)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS and node.func.id not in source.names:
                yield source.at(node, f"calls {node.func.id}", _PLAIN)
            elif source.full_name(node.func) == "torch.load":
                yield source.at(node, "calls torch.load", _PLAIN)


def changed_core(source: SourceFile) -> Iterator[Finding]:
    """Attributes and items assigned on what was imported from core, patches, and writes to sys.modules."""
    for node in source.nodes():
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [part for target in node.targets for part in _parts(target)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            targets = []
        for target in targets:
            yield from _written(source, target)
        if isinstance(node, ast.Call):
            yield from _called(source, node)


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _parts(element)]
    return [target]


def _written(source: SourceFile, target: ast.expr) -> Iterator[Finding]:
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return
    owner = source.full_name(target.value)
    if owner == "sys.modules":
        yield source.at(target, "writes to sys.modules", _LEAVE)
    elif owner is not None and _is_of(owner, "tessera"):
        yield source.at(target, f"assigns {ast.unparse(target)}, which is core's", _LEAVE)


def _called(source: SourceFile, call: ast.Call) -> Iterator[Finding]:
    name, first = ast.unparse(call.func), call.args[0] if call.args else None
    full = source.full_name(call.func) or name
    if full.startswith("sys.modules."):
        if full.rpartition(".")[2] in ("update", "pop", "setdefault", "clear", "__setitem__"):
            yield source.at(call, "writes to sys.modules", _LEAVE)
        return
    patches = full.startswith(_PATCHERS) or name.endswith("monkeypatch.setattr")
    if first is None or not (name in _SETTERS or patches):
        return
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    target = text if patches and text else source.full_name(first)
    if target is not None and _is_of(target, "tessera"):
        yield source.at(call, f"{'patches' if patches else name + ' on'} {target}, which is core's", _LEAVE)


def _is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
