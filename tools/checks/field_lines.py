"""Bans paragraphs of `name: meaning.` for a class's fields: each field has its own comment, beside or above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.checks.sources import Source

_MAX_DESCRIBED = 3
_SHAPE = r"(?: \[[^\]]*\])?(?: (?:u?int|float)\d+| bool)?"
_CLAUSE = re.compile(rf"(?<![\w.])((?:`*\w+`*{_SHAPE}, )*`*\w+`*{_SHAPE}):\s")
"""`name: `, `name [T] int32: ` or `name, other: `, which counts for both."""


def field_lines(source: Source) -> Iterator[tuple[int, str, str]]:
    """The line, the name and the text of each class of one file whose docstring describes too many of its fields."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            described = _named(ast.get_docstring(node) or "") & _fields(node)
            if len(described) > _MAX_DESCRIBED:
                text = f"the docstring of {node.name} describes fields: {', '.join(sorted(described))}"
                yield node.lineno, node.name, text


def _named(docstring: str) -> set[str]:
    return {name.split()[0].strip("`") for clause in _CLAUSE.findall(docstring) for name in clause.split(", ")}


def _fields(node: ast.ClassDef) -> set[str]:
    """Of a dataclass or struct those of its body, of another class those that __init__ takes and those it assigns."""
    fields = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            fields |= {argument.arg for argument in (*part.args.args, *part.args.kwonlyargs)}
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            fields.add(part.attr)
    return fields
