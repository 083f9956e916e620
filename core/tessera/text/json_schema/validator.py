"""Whether values that a schema names are valid by what else it says."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tessera.text.json_schema.document import REFERENCES, Document, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.keywords import (
    BROKEN,
    NONE_OF,
    UNLESS,
    UNLIKE,
    bounds,
    dependencies,
    is_number,
    items,
    paths,
    required,
)
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.strings import Strings

_MOST_STEPS = 64


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return bool(first == second)


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


def is_multiple(value: Any, steps: Iterable[Any]) -> bool:
    """Whether a number is a multiple of each of these, as decimals."""
    return all((Fraction(str(value)) / Fraction(str(step))).denominator == 1 for step in steps)


class Validator:
    """Judges values as JSON Schema does; formats that are enforced count."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        self._document = document
        self._patterns = patterns

    def valid(self, value: Any, schema: Subschema, steps: int = 0) -> bool:
        """Raises SchemaError for a schema that is none."""
        keywords = schema.schema
        if isinstance(keywords, bool):
            return keywords
        if not isinstance(keywords, dict):
            raise schema.error("must be an object, true or false")
        if steps > _MOST_STEPS:
            raise schema.error("it refers to itself without an end")
        if any(keyword in keywords for keyword in REFERENCES):
            if not self.valid(value, self._document.follow(schema), steps + 1):
                return False
            if self._document.references_stand_alone:
                return True
        return self._in_place(value, schema, steps + 1) and self._of_type(value, schema, steps + 1)

    def _in_place(self, value: Any, schema: Subschema, steps: int) -> bool:
        keywords = schema.schema

        def holds(*path: Any) -> bool:
            return self.valid(value, schema.child(*path), steps)

        if "enum" in keywords and not any(same(value, each) for each in keywords["enum"]):
            return False
        if "const" in keywords and not same(value, keywords["const"]):
            return False
        if any(same(value, each) for each in keywords.get(NONE_OF, ())):
            return False
        if not all(holds("allOf", place) for place in range(len(keywords.get("allOf", ())))):
            return False
        if "anyOf" in keywords and not any(holds("anyOf", place) for place in range(len(keywords["anyOf"]))):
            return False
        if "oneOf" in keywords and sum(holds("oneOf", place) for place in range(len(keywords["oneOf"]))) != 1:
            return False
        if "not" in keywords and holds("not"):
            return False
        if UNLESS in keywords and self.valid(value, keywords[UNLESS][0], steps):
            return False
        if "if" in schema:
            then = "then" if holds("if") else "else"
            return then not in keywords or holds(then)
        return True

    def _of_type(self, value: Any, schema: Subschema, steps: int) -> bool:
        types = schema.get("type")
        if types is not None and not any(
            is_type(value, name) for name in ([types] if isinstance(types, str) else types)
        ):
            return False
        if isinstance(value, str):
            return self._string(value, schema)
        if is_number(value):
            return self._number(value, schema)
        if isinstance(value, list):
            return self._array(value, schema, steps)
        return not isinstance(value, dict) or self._object(value, schema, steps)

    def _string(self, value: str, schema: Subschema) -> bool:
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            return False
        if "pattern" in schema and not self._patterns.search(schema.get("pattern"), value):
            return False
        if UNLIKE in schema and self._patterns.search(schema.get(UNLIKE), value):
            return False
        whole = FORMATS.get(schema.get("format")) if isinstance(schema.get("format"), str) else None
        return whole is None or self._patterns.match(Strings(formats=[whole]), value)

    def _number(self, value: Any, schema: Subschema) -> bool:
        if BROKEN in schema and value == int(value):
            return False
        for bound, is_open, is_low in bounds(schema):
            if (value < bound if is_low else value > bound) or (is_open and value == bound):
                return False
        step = schema.get("multipleOf")
        return not is_number(step) or is_multiple(value, (step,))

    def _array(self, value: list[Any], schema: Subschema, steps: int) -> bool:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        if schema.get("uniqueItems") is True and any(
            same(one, other) for place, one in enumerate(value) for other in value[:place]
        ):
            return False
        prefix, rest = items(schema, self._document)
        for place, item in enumerate(value):
            path = (*prefix, place) if prefix and place < len(schema.get(prefix[0])) else rest
            if path and not self.valid(item, schema.child(*path), steps):
                return False
        if "contains" in schema:
            count = sum(self.valid(item, schema.child("contains"), steps) for item in value)
            return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", len(value)))
        return True

    def _object(self, value: dict[str, Any], schema: Subschema, steps: int) -> bool:
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            return False
        if not all(name in value for name in required(schema)):
            return False
        for name, each in value.items():
            if "propertyNames" in schema and not self.valid(name, schema.child("propertyNames"), steps):
                return False
            for path in paths(schema, name, self._patterns):
                if not self.valid(each, schema.child(*path), steps):
                    return False
        return all(
            self._depends(value, schema, *path, steps=steps) for path in dependencies(schema) if path[1] in value
        )

    def _depends(self, value: dict[str, Any], schema: Subschema, *path: str, steps: int) -> bool:
        needed = schema.get(path[0])[path[1]]
        if isinstance(needed, list):
            return all(name in value for name in needed)
        return self.valid(value, schema.child(*path), steps)
