"""Patterns of schemas that llguidance compiles and cannot follow: the first masks within such a text already exceed its
limits (text/grammar.py). They are patterns beside a bound of length, since both are followed at once, and names of
properties with large counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tessera.text.json_schema import SchemaError, format_place, subschemas

Judge = Callable[[dict[str, Any], bytes], bool]

_LARGE_COUNT = re.compile(r"\{\d*,?\d{3,}\}")
_LENGTHS = ("minLength", "maxLength")


def check_patterns(schema: Any, exhausts: Judge) -> None:
    """exhausts: whether the masks of a schema's text that begins so exceed a limit. Raises SchemaError for a pattern
    that cannot be followed."""
    for place, found in subschemas(schema):
        if not isinstance(found, dict):
            continue
        lengths = {key: found[key] for key in _LENGTHS if key in found}
        own = {"type": "string", "pattern": found.get("pattern"), **lengths}
        if "pattern" in found and lengths and exhausts(own, b'"'):
            beside = " and ".join(lengths)
            raise SchemaError(format_place((*place, "pattern")), f"it is too complex beside {beside}; lower its counts")
        names = found.get("patternProperties")
        for name in names if isinstance(names, dict) else ():
            if _LARGE_COUNT.search(name) and exhausts({"type": "object", "patternProperties": {name: True}}, b'{"'):
                raise SchemaError(format_place((*place, "patternProperties")), "it is too complex; lower its counts")
