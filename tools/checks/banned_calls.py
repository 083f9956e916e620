"""Bans code that executes what it reads: pickle and similar modules, eval, loading of arbitrary objects, shells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.checks.sources import Source, imports, python_sources

BANNED_MODULES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
BANNED_BUILTINS = frozenset({"eval", "exec", "__import__"})
BANNED_MEMBERS = frozenset({"builtins.eval", "builtins.exec", "os.popen", "os.system", "torch.load"})
BANNED_ARGUMENTS = {"allow_pickle": True, "shell": True, "trust_remote_code": True, "weights_only": False}


def banned_calls(root: Path) -> list[str]:
    """Uses of banned modules, functions and arguments in core and the platform packages, including their tests."""
    return [
        finding
        for source in python_sources(root, "core/**/*.py", "platforms/**/*.py")
        for finding in (*_banned_imports(source), *_banned_expressions(source))
    ]


def _banned_imports(source: Source) -> Iterator[str]:
    for found in imports(source.tree):
        if found.target.partition(".")[0] in BANNED_MODULES or found.target in BANNED_MEMBERS:
            yield source.at(found.line, f"imports {found.target}")


def _banned_expressions(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id in BANNED_BUILTINS:
            yield source.at(node.lineno, f"uses {node.id}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in BANNED_MEMBERS:
            yield source.at(node.lineno, f"uses {ast.unparse(node)}")
        elif isinstance(node, ast.Call):
            yield from (source.at(node.lineno, f"passes {argument}") for argument in _banned_arguments(node))


def _banned_arguments(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        banned = BANNED_ARGUMENTS.get(keyword.arg or "")
        if banned is not None and isinstance(keyword.value, ast.Constant) and keyword.value.value is banned:
            yield f"{keyword.arg}={banned}"
