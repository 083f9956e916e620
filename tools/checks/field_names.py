"""Bans names that say nothing outside the sentence they stand in (found, asked, given, own) and metaphors, where the
field has a noun: in parameters, attributes, methods, functions, classes and modules. Locals are free."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.checks.sources import Source

# Participles and pronouns: banned as a whole name, not within one.
_ALONE = frozenset(
    {
        *("asked", "found", "given", "held", "kept", "known", "left", "made", "said", "shown"),
        *("more", "most", "one", "own", "some", "such", "way"),
    }
)
# Pictures and turns of speech: banned as words of a name. The field says restart, crash, callbacks, describe.
_METAPHORS = ("bury", "charge", "deafen", "deaths", "guilty", "in words", "last words", "own process", "trials")
# The same, as a whole name: within one, as in QuantizeAtLoad, they say when.
_PHRASES = frozenset({"as stored", "as they are", "at load"})
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def field_names(source: Source) -> Iterator[tuple[int, str, str]]:
    """The line, the name and the text of each offence of one file."""
    stem = PurePosixPath(source.name).stem
    if why := _why_not(stem):
        yield 1, stem, f"module {stem}: {why}"
    for line, kind, name in sorted(_names(source.tree)):
        if why := _why_not(name):
            yield line, name, f"{kind} {name}: {why}"


def _why_not(name: str) -> str | None:
    words = " ".join(_WORDS.findall(name)).lower()
    if words in _ALONE or words in _PHRASES:
        return "say what it is"
    if words == "of":
        return "a method has a verb"
    if metaphor := next((metaphor for metaphor in _METAPHORS if f" {metaphor} " in f" {words} "), None):
        return f"{metaphor!r} is a metaphor"
    return None


def _names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, kind and name of everything that is named for use from elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, "function", node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, "parameter", node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "attribute", node.attr
        if isinstance(node, ast.ClassDef | ast.Module):
            kind = "attribute" if isinstance(node, ast.ClassDef) else "constant"
            yield from ((line, kind, name) for line, name in _assigned(node.body))


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """What the statements of a class or a module assign, outside their functions."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for node in ast.walk(statement):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                yield from (
                    (name.lineno, name.id)
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                )
