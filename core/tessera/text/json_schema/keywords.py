"""Keywords of JSON Schema, as each part of the compiler reads them."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tessera.text.json_schema.document import REFERENCES, Document, Subschema
from tessera.text.json_schema.forms import Conjunction
from tessera.text.json_schema.patterns import Patterns

TYPES = ("null", "boolean", "number", "string", "array", "object")

NONE_OF, UNLIKE, BROKEN, UNLESS = "none of", "unlike", "broken", "unless"
"""Keywords of derived schemas alone: the value is none of these; no string that this pattern matches; no whole number;
not valid by a schema, with the names of the properties that may tell (negation.py)."""

CHOICES = ("anyOf", "oneOf", "not", "if", "dependencies", "dependentRequired", "dependentSchemas", UNLESS)
"""Keywords of which one schema or another has to hold."""
ASSERTIONS = frozenset(
    (
        *("type", "enum", "const", NONE_OF, UNLIKE, BROKEN),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("unevaluatedItems", "properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties"),
    )
)
"""Keywords that say something of a value by themselves."""
APPLICATORS = frozenset((*CHOICES, *REFERENCES, "allOf"))
"""Keywords that apply other schemas to the same value."""
_MEANINGFUL = ASSERTIONS | APPLICATORS


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def meaningful(schemas: Iterable[Subschema]) -> Conjunction:
    """The schemas that say something, each once."""
    found = dict.fromkeys(schemas)
    return tuple(
        each
        for each in found
        if each.schema is not True and not (isinstance(each.schema, dict) and _MEANINGFUL.isdisjoint(each.schema))
    )


def subschemas_of(schema: Subschema, keyword: str) -> list[Subschema]:
    value = schema.get(keyword, ())
    if not isinstance(value, list | tuple):
        raise schema.error("must be a list of schemas", keyword)
    return [schema.child(keyword, place) for place in range(len(value))]


def bounds(schema: Subschema) -> list[tuple[Decimal, bool, bool]]:
    """Each bound of a number: its value, whether it is excluded, and whether it is the lower one. Draft 4 has booleans
    for those that are excluded. Raises SchemaError."""
    found = []
    for keyword, exclusive, is_low in (("minimum", "exclusiveMinimum", True), ("maximum", "exclusiveMaximum", False)):
        is_open = schema.get(exclusive)
        for name, value in (
            (keyword, schema.get(keyword)),
            (exclusive, None if isinstance(is_open, bool) else is_open),
        ):
            if value is None:
                continue
            if not is_number(value):
                raise schema.error("must be a number", name)
            found.append((Decimal(str(value)), name == exclusive or is_open is True, is_low))
    return found


def items(schema: Subschema, document: Document) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the schemas of an array's first items are, and that of the others; empty for none."""
    first = schema.get("items")
    if isinstance(first, list):
        return ("items",), ("additionalItems",) if "additionalItems" in schema else ()
    has_prefix = "prefixItems" in schema and document.draft >= 2020
    return ("prefixItems",) if has_prefix else (), ("items",) if "items" in schema else ()


def required(schema: Subschema) -> list[str]:
    """Raises SchemaError."""
    names = schema.get("required", ())
    if isinstance(names, bool):  # draft 3, which says it in the property
        return []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise schema.error("must be a list of names", "required")
    return list(names)


def paths(schema: Subschema, name: str, patterns: Patterns) -> list[tuple[str, ...]]:
    """Where the schemas of a property are."""
    found: list[tuple[str, ...]] = []
    if name in schema.get("properties", ()):
        found.append(("properties", name))
    found += [
        ("patternProperties", each) for each in schema.get("patternProperties", ()) if patterns.search(each, name)
    ]
    if not found and "additionalProperties" in schema:
        found.append(("additionalProperties",))
    return found


def dependencies(schema: Subschema) -> list[tuple[str, str]]:
    return [
        (keyword, name)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas")
        for name in schema.get(keyword, ())
    ]


def mapping(schema: Subschema, keyword: str) -> dict[str, Any]:
    """The value of a keyword that maps names to schemas. Raises SchemaError."""
    value = schema.get(keyword) or {}
    if not isinstance(value, dict):
        raise schema.error("must be an object", keyword)
    return value


def count(schema: Subschema, keyword: str) -> int | None:
    """A number of characters, items or properties. Raises SchemaError."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise schema.error("must be a whole number that is not negative", keyword)
    return value


def lower(first: int | None, second: int | None) -> int | None:
    """The lower one of two bounds; None is no bound."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def types_of(schemas: Conjunction) -> frozenset[str]:
    """The types that all schemas allow. Raises SchemaError."""
    found = frozenset(TYPES)
    for schema in schemas:
        types = schema.get("type")
        if types is None:
            continue
        named = [types] if isinstance(types, str) else types
        if not isinstance(named, list):
            raise schema.error("must be a type, or a list of types", "type")
        for name in named:
            if name not in TYPES and name != "integer":
                raise schema.error(f"there is no type {str(name)[:40]!r}", "type")
        allowed = set(named)
        if "number" in allowed:
            allowed.discard("integer")
        if "integer" in allowed and "number" in found:
            found = found - {"number"} | {"integer"}
        if "number" in allowed and "integer" in found:
            allowed.add("integer")
        found &= allowed
    return found


def named_values(schemas: Conjunction) -> list[Any] | None:
    """The values that a schema names; None if it names none."""
    for schema in schemas:
        if "const" in schema:
            return [schema.get("const")]
        if "enum" in schema:
            if not isinstance(schema.get("enum"), list):
                raise schema.error("must be a list of values", "enum")
            return list(schema.get("enum"))
    return None
