"""How deep llguidance's stack gets where it compiles a grammar in Lark's syntax. It follows each rule and each terminal
where these are first mentioned, each group, and each schema of %json, by calls within calls; where the stack is too
small for them, the process ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote

MAX_DEPTH = 500
"""Calls of at most 3.3 KB each, or half as many values of JSON of at most 4.3 KB: for 2 MB of stack, the least that a
thread has by default (llguidance 1.9.1, x86-64)."""
_WORD = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*" | /(?!/)(?:\\.|[^/\\\n])+/ | (?://|\#)[^\n]*
    | [!?]?([A-Za-z_][\w-]*)
      (\s*(?:::\s*_)?\s*(?:\.\s*-?\d+)?\s*(?:\[(?:"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/|[^\]"/])*\])?\s*:(?!:))?
    | ([()\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
"""A name and what stands between it and its definition, if this follows; or a bracket."""
_JSON = re.compile(r"%json\s*")

Reference = tuple[str, int]
"""A name, and the groups around it."""
T = TypeVar("T")


def is_too_deep(lark: str) -> bool:
    """Whether compiling a grammar takes more than MAX_DEPTH calls within one another."""
    most = sum(map(lark.count, ":(["))  # names that are defined, and groups
    if most > MAX_DEPTH and depth(lark) > MAX_DEPTH:
        return True
    decoder = json.JSONDecoder()
    for found in _JSON.finditer(lark):
        try:
            schema, _ = decoder.raw_decode(lark, found.end())
        except (ValueError, RecursionError):  # llguidance says so
            continue
        if schema_depth(schema) > MAX_DEPTH // 2:
            return True
    return False


def depth(lark: str) -> int:
    """Rules, terminals and groups that are within one another at most."""
    rules = _references(lark)

    def below(reference: Reference) -> Iterator[tuple[Reference, int]]:
        return ((each, 1 + each[1]) for each in rules.pop(reference[0]) if each[0] in rules)

    rules[""].append(("start", 0))
    return _deepest(("", 0), below)


def schema_depth(schema: Any) -> int:
    """Objects and lists that are within one another at most, as references lead to them."""
    followed: set[str] = set()

    def below(value: Any) -> Iterator[tuple[Any, int]]:
        if isinstance(value, list):
            yield from ((each, 1) for each in value if isinstance(each, dict | list))
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                yield _target(schema, reference), 1
            yield from ((each, 1) for each in value.values() if isinstance(each, dict | list))

    return _deepest(schema, below)


def _deepest(root: T, below: Callable[[T], Iterator[tuple[T, int]]]) -> int:
    """below: what is followed from here, in order, and how many levels down each is."""
    waiting = [(below(root), 0)]
    deepest = 0
    while waiting:
        following, level = waiting[-1]
        found = next(following, None)
        if found is None:
            waiting.pop()
        else:
            deepest = max(deepest, level + found[1])
            waiting.append((below(found[0]), level + found[1]))
    return deepest


def _references(lark: str) -> dict[str, list[Reference]]:
    """What each rule and each terminal refers to, in order; "" is what stands outside of them."""
    own: list[Reference] = []
    found = {"": own}
    groups = 0
    for name, defined, bracket in _WORD.findall(lark):
        if defined:
            own, groups = found.setdefault(name, []), 0
        elif name:
            own.append((name, groups))
        elif bracket:
            groups += 1 if bracket in "([" else -1
    return found


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer leads to; None for nothing."""
    found = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found
