"""Values that a schema names, and whether they are valid by what else it says."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tessera.text.json_schema.document import REFERENCES, Document, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.strings import Strings

_MOST_STEPS = 64


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def is_type(value: Any, name: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return is_number(value) and value == int(value)
        case "number":
            return is_number(value)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return False


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_multiple(value: Any, steps: Iterable[Any]) -> bool:
    """Whether a number is a multiple of each of these, as decimals."""
    return all((Fraction(str(value)) / Fraction(str(step))).denominator == 1 for step in steps)


class Validator:
    """Judges values as JSON Schema does; formats that are enforced count."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        self._document = document
        self._patterns = patterns

    def valid(self, value: Any, by: Subschema, steps: int = 0) -> bool:
        """Raises SchemaError for a schema that is none."""
        schema = by.schema
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise by.error("must be an object, true or false")
        if steps > _MOST_STEPS:
            raise by.error("it refers to itself without an end")
        if any(keyword in schema for keyword in REFERENCES):
            if not self.valid(value, self._document.follow(by), steps + 1):
                return False
            if self._document.references_stand_alone:
                return True
        return self._in_place(value, by, steps + 1) and self._of_type(value, by, steps + 1)

    def _in_place(self, value: Any, by: Subschema, steps: int) -> bool:
        schema = by.schema

        def holds(*path: Any) -> bool:
            return self.valid(value, by.child(*path), steps)

        if "enum" in schema and not any(same(value, each) for each in schema["enum"]):
            return False
        if "const" in schema and not same(value, schema["const"]):
            return False
        if any(same(value, each) for each in schema.get(NONE_OF, ())):
            return False
        if not all(holds("allOf", place) for place in range(len(schema.get("allOf", ())))):
            return False
        if "anyOf" in schema and not any(holds("anyOf", place) for place in range(len(schema["anyOf"]))):
            return False
        if "oneOf" in schema and sum(holds("oneOf", place) for place in range(len(schema["oneOf"]))) != 1:
            return False
        if "not" in schema and holds("not"):
            return False
        if UNLESS in schema and self.valid(value, schema[UNLESS][0], steps):
            return False
        if "if" in schema:
            then = "then" if holds("if") else "else"
            return then not in schema or holds(then)
        return True

    def _of_type(self, value: Any, by: Subschema, steps: int) -> bool:
        types = by.get("type")
        if types is not None and not any(
            is_type(value, name) for name in ([types] if isinstance(types, str) else types)
        ):
            return False
        if isinstance(value, str):
            return self._string(value, by)
        if is_number(value):
            return self._number(value, by)
        if isinstance(value, list):
            return self._array(value, by, steps)
        return not isinstance(value, dict) or self._object(value, by, steps)

    def _string(self, value: str, by: Subschema) -> bool:
        if not by.get("minLength", 0) <= len(value) <= by.get("maxLength", len(value)):
            return False
        if "pattern" in by and not self._patterns.search(by.get("pattern"), value):
            return False
        if UNLIKE in by and self._patterns.search(by.get(UNLIKE), value):
            return False
        whole = FORMATS.get(by.get("format")) if isinstance(by.get("format"), str) else None
        return whole is None or self._patterns.match(Strings(wholes=[whole]), value)

    def _number(self, value: Any, by: Subschema) -> bool:
        if BROKEN in by and value == int(value):
            return False
        for bound, is_open, is_low in bounds(by):
            if (value < bound if is_low else value > bound) or (is_open and value == bound):
                return False
        step = by.get("multipleOf")
        return not is_number(step) or is_multiple(value, (step,))

    def _array(self, value: list[Any], by: Subschema, steps: int) -> bool:
        if not by.get("minItems", 0) <= len(value) <= by.get("maxItems", len(value)):
            return False
        if by.get("uniqueItems") is True and any(
            same(one, other) for place, one in enumerate(value) for other in value[:place]
        ):
            return False
        prefix, rest = items(by, self._document)
        for place, item in enumerate(value):
            path = (*prefix, place) if prefix and place < len(by.get(prefix[0])) else rest
            if path and not self.valid(item, by.child(*path), steps):
                return False
        if "contains" in by:
            count = sum(self.valid(item, by.child("contains"), steps) for item in value)
            return bool(by.get("minContains", 1) <= count <= by.get("maxContains", len(value)))
        return True

    def _object(self, value: dict[str, Any], by: Subschema, steps: int) -> bool:
        if not by.get("minProperties", 0) <= len(value) <= by.get("maxProperties", len(value)):
            return False
        if not all(name in value for name in required(by)):
            return False
        for name, each in value.items():
            if "propertyNames" in by and not self.valid(name, by.child("propertyNames"), steps):
                return False
            for path in paths(by, name, self._patterns):
                if not self.valid(each, by.child(*path), steps):
                    return False
        return all(self._depends(value, by, *path, steps=steps) for path in dependencies(by) if path[1] in value)

    def _depends(self, value: dict[str, Any], by: Subschema, *path: str, steps: int) -> bool:
        needed = by.get(path[0])[path[1]]
        if isinstance(needed, list):
            return all(name in value for name in needed)
        return self.valid(value, by.child(*path), steps)


# ---- keywords, as each part of the compiler reads them ---------------------------------------------------------------

NONE_OF, UNLIKE, BROKEN, UNLESS = "none of", "unlike", "broken", "unless"
"""Keywords of derived schemas alone: the value is none of these; no string that this pattern matches; no whole number;
not valid by a schema, with the names of the properties that may tell (negation.py)."""


def bounds(by: Subschema) -> list[tuple[Decimal, bool, bool]]:
    """Each bound of a number: its value, whether it is excluded, and whether it is the lower one. Draft 4 has booleans
    for those that are excluded. Raises SchemaError."""
    found = []
    for keyword, exclusive, is_low in (("minimum", "exclusiveMinimum", True), ("maximum", "exclusiveMaximum", False)):
        is_open = by.get(exclusive)
        for name, value in ((keyword, by.get(keyword)), (exclusive, None if isinstance(is_open, bool) else is_open)):
            if value is None:
                continue
            if not is_number(value):
                raise by.error("must be a number", name)
            found.append((Decimal(str(value)), name == exclusive or is_open is True, is_low))
    return found


def items(by: Subschema, document: Document) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the schemas of an array's first items are, and that of the others; empty for none."""
    first = by.get("items")
    if isinstance(first, list):
        return ("items",), ("additionalItems",) if "additionalItems" in by else ()
    has_prefix = "prefixItems" in by and document.draft >= 2020
    return ("prefixItems",) if has_prefix else (), ("items",) if "items" in by else ()


def required(by: Subschema) -> list[str]:
    """Raises SchemaError."""
    names = by.get("required", ())
    if isinstance(names, bool):  # draft 3, which says it in the property
        return []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise by.error("must be a list of names", "required")
    return list(names)


def paths(by: Subschema, name: str, patterns: Patterns) -> list[tuple[str, ...]]:
    """Where the schemas of a property are."""
    found: list[tuple[str, ...]] = []
    if name in by.get("properties", ()):
        found.append(("properties", name))
    found += [("patternProperties", each) for each in by.get("patternProperties", ()) if patterns.search(each, name)]
    if not found and "additionalProperties" in by:
        found.append(("additionalProperties",))
    return found


def dependencies(by: Subschema) -> list[tuple[str, str]]:
    return [
        (keyword, name)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas")
        for name in by.get(keyword, ())
    ]
