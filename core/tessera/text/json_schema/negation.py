"""What is not valid by a schema, as schemas of which one has to hold.

Some of what is not valid may be left out, never more be said: an answer is then valid all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from tessera.text.json_schema.document import REFERENCES, Document, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.keywords import BROKEN, NONE_OF, TYPES, UNLIKE, bounds, dependencies, items, required

_MOST_STEPS = 24
_MOST_PAIRS = 6
_SETTLING = frozenset(("const", "enum", "type"))
_LIMITS = (  # the type, the keyword, the opposite one and what to add
    ("string", "minLength", "maxLength", -1),
    ("string", "maxLength", "minLength", 1),
    ("array", "minItems", "maxItems", -1),
    ("array", "maxItems", "minItems", 1),
    ("object", "minProperties", "maxProperties", -1),
    ("object", "maxProperties", "minProperties", 1),
)


class Negation(NamedTuple):
    """options: conjunctions, of which one has to hold. whole: nothing that is not valid was left out."""

    options: list[tuple[Subschema, ...]]
    whole: bool


def negation(document: Document, schema: Subschema, names: Collection[str] | None = None, steps: int = 0) -> Negation:
    """names: only by what an author means by alternatives: properties that are absent, or that have another type or
    value and are among these names. Raises SchemaError."""
    if isinstance(schema.schema, bool):
        return Negation([] if schema.schema else [()], whole=True)
    if not isinstance(schema.schema, dict):
        raise schema.error("must be an object, true or false")
    if steps > _MOST_STEPS:
        return Negation([], whole=False)
    own = _Negation(document, schema, names, steps)
    own.collect()
    return Negation(own.options, own.whole)


class _Negation:
    def __init__(self, document: Document, schema: Subschema, names: Collection[str] | None, steps: int) -> None:
        self._document = document
        self._schema = schema
        self._names = names
        self._steps = steps
        self.options: list[tuple[Subschema, ...]] = []
        self.whole = True

    def collect(self) -> None:
        schema = self._schema
        if any(keyword in schema for keyword in REFERENCES):
            self._take(self._document.follow(schema))
            if self._document.references_stand_alone:
                return
        self._values()
        self._combinations()
        self._bounds()
        self._object()
        self._array()

    def _add(self, option: dict[str, Any]) -> None:
        self.options.append((self._schema.derive(option),))

    def _not(self, *path: Any) -> Subschema:
        return self._schema.derive({"not": self._schema.child(*path)})

    def _take(self, other: Subschema) -> None:
        found = negation(self._document, other, self._names, self._steps + 1)
        self.options += found.options
        self.whole &= found.whole

    def _values(self) -> None:
        schema = self._schema
        types = schema.get("type")
        if types is not None:
            named = {types} if isinstance(types, str) else set(types)
            others = [name for name in TYPES if name not in named]
            if "integer" in named and "number" not in named:
                others.remove("number")
                self._add({"type": ["number"], BROKEN: True})
            if others:
                self._add({"type": others})
        for values in (schema.get("enum"), [schema.get("const")] if "const" in schema else None):
            if values is not None:
                plain = all(not isinstance(value, list | dict) for value in values)
                self.whole &= plain
                self._add({NONE_OF: values, **({} if plain else {"type": ["null", "boolean", "number", "string"]})})
        if NONE_OF in schema:
            self._add({"enum": schema.get(NONE_OF)})

    def _combinations(self) -> None:
        schema = self._schema
        for place in range(len(schema.get("allOf", ()))):
            self._take(schema.child("allOf", place))
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            count = len(schema.get(keyword))
            self.options.append(tuple(self._not(keyword, place) for place in range(count)))
            if keyword == "oneOf" and count <= _MOST_PAIRS:
                each = [schema.child(keyword, place) for place in range(count)]
                self.options += [(one, other) for place, one in enumerate(each) for other in each[:place]]
        if "not" in schema:
            self.options.append((schema.child("not"),))
        if "if" in schema and "then" in schema:
            self.options.append((schema.child("if"), self._not("then")))
        if "if" in schema and "else" in schema:
            self.options.append((self._not("if"), self._not("else")))

    def _bounds(self) -> None:
        schema = self._schema
        for value, is_open, is_low in bounds(schema):
            keyword = (
                ("maximum" if is_open else "exclusiveMaximum")
                if is_low
                else ("minimum" if is_open else "exclusiveMinimum")
            )
            self._add({"type": ["number"], keyword: value})
        for name, keyword, opposite, more in _LIMITS:
            value = schema.get(keyword)
            if isinstance(value, int) and value + more >= 0:
                self._add({"type": [name], opposite: value + more})
        if isinstance(schema.get("pattern"), str):
            self._add({"type": ["string"], UNLIKE: schema.get("pattern")})
        if isinstance(schema.get("format"), str) and schema.get("format") in FORMATS:
            self._add({"type": ["string"], UNLIKE: f"^(?:{FORMATS[schema.get('format')]})$"})
        self.whole &= "multipleOf" not in schema and UNLIKE not in schema and BROKEN not in schema

    def _object(self) -> None:
        schema = self._schema
        for name in required(schema):
            self._add({"type": ["object"], "properties": {name: False}})
        properties = schema.get("properties") or {}
        for name in properties:
            if self._names is None or (name in self._names and self._settles(schema.child("properties", name))):
                different = {name: self._not("properties", name)}
                self._add({"type": ["object"], "required": [name], "properties": different})
            else:
                self.whole = False
        if (
            schema.get("additionalProperties") is False
            and "patternProperties" not in schema
            and self._names is not None
        ):
            for name in self._names:
                if name not in properties:
                    self._add({"type": ["object"], "required": [name]})
        for keyword, name in dependencies(schema):
            needed = schema.get(keyword)[name]
            present = schema.derive({"type": ["object"], "required": [name]})
            for other in needed if isinstance(needed, list) else ():
                self.options.append((present, schema.derive({"properties": {other: False}})))
            if not isinstance(needed, list):
                self.options.append((present, self._not(keyword, name)))
        for keyword in ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"):
            self.whole &= keyword not in schema or schema.get(keyword) is True

    def _settles(self, schema: Subschema) -> bool:
        """Whether a property tells alternatives apart by its type or its value."""
        for _ in range(_MOST_STEPS):
            if isinstance(schema.schema, bool) or not isinstance(schema.schema, dict):
                return isinstance(schema.schema, bool)
            if "$ref" not in schema:
                break
            schema = self._document.follow(schema)
        return not _SETTLING.isdisjoint(schema.schema)

    def _array(self) -> None:
        schema = self._schema
        prefix, rest = items(schema, self._document)
        if rest and not prefix:
            self._add({"type": ["array"], "contains": self._not(*rest)})
        self.whole &= not prefix and schema.get("uniqueItems") is not True and "unevaluatedItems" not in schema
        if "contains" in schema:
            if schema.get("minContains", 1) == 1 and "maxContains" not in schema:
                self._add({"type": ["array"], "items": self._not("contains")})
            else:
                self.whole = False
