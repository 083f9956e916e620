"""Classes under a contract, and hooks: members that core will never call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import tessera.platform
from tessera.hookspecs import Hooks
from tessera.plugins.check.package import Finding, Package, SourceFile
from tessera.plugins.members import CONTRACTS, nearest_member, replacement_of
from tessera.plugins.modules import no_such_hook

_PREFIX = "tessera.platform."


def contracts_of(package: Package) -> Mapping[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]]:
    """Classes of the package by module and name, each with the class of the contract that it stands on."""
    classes = {
        (source.module, node.name): (source, node)
        for source in package.sources
        if not source.is_test
        for node in source.nodes()
        if isinstance(node, ast.ClassDef)
    }
    found: dict[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]] = {}
    for _ in classes:  # a base may be found after the class that stands on it
        known = len(found)
        for key, (source, node) in classes.items():
            base = None if key in found else _base(source, node, found)
            if base is not None:
                found[key] = source, node, base
        if len(found) == known:
            break
    return found


def _base(
    source: SourceFile, node: ast.ClassDef, found: Mapping[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]]
) -> type | None:
    for expression in node.bases:
        plain = expression.value if isinstance(expression, ast.Subscript) else expression
        full = source.full_name(plain) or f"{source.module}.{ast.unparse(plain)}"
        if full.startswith(_PREFIX):
            cls = getattr(tessera.platform, full.removeprefix(_PREFIX), None)
            if isinstance(cls, type) and any(issubclass(cls, contract) for contract in CONTRACTS):
                return cls
        module, _, name = full.rpartition(".")
        if (module, name) in found:
            return found[module, name][2]
    return None


def facets_of(package: Package) -> set[str]:
    """Facets of the contracts that its classes stand on."""
    classes = [cls for _, _, cls in contracts_of(package).values()]
    return {facet for contract, facet in CONTRACTS.items() if any(issubclass(cls, contract) for cls in classes)}


def dead_members(package: Package) -> Iterator[Finding]:
    for source, node, cls in contracts_of(package).values():
        known = {name for one in cls.__mro__ for name in (*vars(one), *vars(one).get("__annotations__", ()))}
        for statement in node.body:
            for name in _defined(statement):
                finding = None if name.startswith("_") else _dead(name, statement, cls, known)
                if finding is not None:
                    yield source.at(statement, f"{node.name} defines {name}, {finding[0]}", finding[1])


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _dead(name: str, statement: ast.stmt, cls: type, known: set[str]) -> tuple[str, str] | None:
    for contract in (one for one in CONTRACTS if issubclass(cls, one)):
        replacement = replacement_of(name, contract)
        if replacement is not None:
            return f"which {contract.__name__} no longer has", f"{replacement} replaced it"
    near = nearest_member(name, known, method=isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef))
    if near is None:
        return None
    return (
        f"which {cls.__name__} does not have",
        f"did it mean {near}?" if near else f"call it _{name} if it is your own",
    )


def unknown_hooks(package: Package) -> Iterator[Finding]:
    hooks = {name for name in vars(Hooks) if not name.startswith("_")}
    entries = {value.partition(":")[0] for value in package.entries.values()}
    for source in package.sources:
        for node in source.tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
            marked = any(source.full_name(mark) == "tessera.platform.hookimpl" for mark in marks)
            if marked and node.name not in hooks:
                what, _, todo = no_such_hook(node.name).partition("; ")
                yield source.at(node, what.removeprefix("it "), todo)
            elif not marked and node.name in hooks and source.module in entries:
                yield source.at(node, f"has the hook {node.name}, which core does not see", "mark it with hookimpl")
