"""Asks that a class's name says which class it is: each name occurs once in core."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

from tools.checks.sources import Source

_CORE = "core/tessera/*"
_WIRES = "core/tessera/server/*/protocol.py"
"""The structs there are named as in the API that they describe, so two APIs may have a name in common. A name that a
wire shares with a class of core's own is still an offence."""


def class_names(sources: Iterable[Source]) -> Iterator[tuple[Source, int, str, str]]:
    """The file, the line, the name and the text of each class that another class of core has the name of."""
    places: dict[str, list[tuple[Source, int]]] = defaultdict(list)
    for source in sources:
        if fnmatch(source.name, _CORE):
            for node in ast.walk(source.tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append((source, node.lineno))
    for name, classes in sorted(places.items()):
        if len(classes) > 1 and not all(fnmatch(source.name, _WIRES) for source, _ in classes):
            for source, line in classes:
                others = sorted({other.name for other, at in classes if (other, at) != (source, line)})
                yield source, line, name, f"class {name} is also in {', '.join(others)}"
