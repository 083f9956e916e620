"""What is not valid by a schema, as schemas of which one has to hold.

Some of what is not valid may be left out, never more be said: an answer is then valid all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from tessera.text.json_schema.document import REFERENCES, Document, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.literals import BROKEN, NONE_OF, UNLIKE, bounds, dependencies, items, required

TYPES = ("null", "boolean", "number", "string", "array", "object")
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


def negation(document: Document, of: Subschema, names: Collection[str] | None = None, steps: int = 0) -> Negation:
    """names: only by what an author means by alternatives: properties that are absent, or that have another type or
    value and are among these names. Raises SchemaError."""
    if isinstance(of.schema, bool):
        return Negation([] if of.schema else [()], whole=True)
    if not isinstance(of.schema, dict):
        raise of.error("must be an object, true or false")
    if steps > _MOST_STEPS:
        return Negation([], whole=False)
    own = _Negation(document, of, names, steps)
    own.collect()
    return Negation(own.options, own.whole)


class _Negation:
    def __init__(self, document: Document, of: Subschema, names: Collection[str] | None, steps: int) -> None:
        self._document = document
        self._of = of
        self._names = names
        self._steps = steps
        self.options: list[tuple[Subschema, ...]] = []
        self.whole = True

    def collect(self) -> None:
        of = self._of
        if any(keyword in of for keyword in REFERENCES):
            self._take(self._document.follow(of))
            if self._document.references_stand_alone:
                return
        self._values()
        self._combinations()
        self._bounds()
        self._object()
        self._array()

    def _add(self, schema: dict[str, Any]) -> None:
        self.options.append((self._of.derive(schema),))

    def _not(self, *path: Any) -> Subschema:
        return self._of.derive({"not": self._of.child(*path)})

    def _take(self, other: Subschema) -> None:
        found = negation(self._document, other, self._names, self._steps + 1)
        self.options += found.options
        self.whole &= found.whole

    def _values(self) -> None:
        of = self._of
        types = of.get("type")
        if types is not None:
            named = {types} if isinstance(types, str) else set(types)
            others = [name for name in TYPES if name not in named]
            if "integer" in named and "number" not in named:
                others.remove("number")
                self._add({"type": ["number"], BROKEN: True})
            if others:
                self._add({"type": others})
        for values in (of.get("enum"), [of.get("const")] if "const" in of else None):
            if values is not None:
                plain = all(not isinstance(value, list | dict) for value in values)
                self.whole &= plain
                self._add({NONE_OF: values, **({} if plain else {"type": ["null", "boolean", "number", "string"]})})
        if NONE_OF in of:
            self._add({"enum": of.get(NONE_OF)})

    def _combinations(self) -> None:
        of = self._of
        for place in range(len(of.get("allOf", ()))):
            self._take(of.child("allOf", place))
        for keyword in ("anyOf", "oneOf"):
            if keyword not in of:
                continue
            count = len(of.get(keyword))
            self.options.append(tuple(self._not(keyword, place) for place in range(count)))
            if keyword == "oneOf" and count <= _MOST_PAIRS:
                each = [of.child(keyword, place) for place in range(count)]
                self.options += [(one, other) for place, one in enumerate(each) for other in each[:place]]
        if "not" in of:
            self.options.append((of.child("not"),))
        if "if" in of and "then" in of:
            self.options.append((of.child("if"), self._not("then")))
        if "if" in of and "else" in of:
            self.options.append((self._not("if"), self._not("else")))

    def _bounds(self) -> None:
        of = self._of
        for value, is_open, is_low in bounds(of):
            keyword = (
                ("maximum" if is_open else "exclusiveMaximum")
                if is_low
                else ("minimum" if is_open else "exclusiveMinimum")
            )
            self._add({"type": ["number"], keyword: value})
        for name, keyword, opposite, more in _LIMITS:
            value = of.get(keyword)
            if isinstance(value, int) and value + more >= 0:
                self._add({"type": [name], opposite: value + more})
        if isinstance(of.get("pattern"), str):
            self._add({"type": ["string"], UNLIKE: of.get("pattern")})
        if isinstance(of.get("format"), str) and of.get("format") in FORMATS:
            self._add({"type": ["string"], UNLIKE: f"^(?:{FORMATS[of.get('format')]})$"})
        self.whole &= "multipleOf" not in of and UNLIKE not in of and BROKEN not in of

    def _object(self) -> None:
        of = self._of
        for name in required(of):
            self._add({"type": ["object"], "properties": {name: False}})
        properties = of.get("properties") or {}
        for name in properties:
            if self._names is None or (name in self._names and self._settles(of.child("properties", name))):
                different = {name: self._not("properties", name)}
                self._add({"type": ["object"], "required": [name], "properties": different})
            else:
                self.whole = False
        if of.get("additionalProperties") is False and "patternProperties" not in of and self._names is not None:
            for name in self._names:
                if name not in properties:
                    self._add({"type": ["object"], "required": [name]})
        for keyword, name in dependencies(of):
            needed = of.get(keyword)[name]
            present = of.derive({"type": ["object"], "required": [name]})
            for other in needed if isinstance(needed, list) else ():
                self.options.append((present, of.derive({"properties": {other: False}})))
            if not isinstance(needed, list):
                self.options.append((present, self._not(keyword, name)))
        for keyword in ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"):
            self.whole &= keyword not in of or of.get(keyword) is True

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
        of = self._of
        prefix, rest = items(of, self._document)
        if rest and not prefix:
            self._add({"type": ["array"], "contains": self._not(*rest)})
        self.whole &= not prefix and of.get("uniqueItems") is not True and "unevaluatedItems" not in of
        if "contains" in of:
            if of.get("minContains", 1) == 1 and "maxContains" not in of:
                self._add({"type": ["array"], "items": self._not("contains")})
            else:
                self.whole = False
