"""Objects: which properties they list, and by which patterns the names of others match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tessera.text.json_schema.document import SchemaError, Subschema
from tessera.text.json_schema.forms import Conjunction, Form, Literals, ObjectForm, Property, Region
from tessera.text.json_schema.keywords import count, lower, mapping, meaningful, required
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.rules import WRONG, Rules
from tessera.text.json_schema.strings import Strings, Unanchored, quote_pattern, spelled_texts
from tessera.text.json_schema.validator import Validator

_MOST_REGIONS = 3
"""Patterns of which each set is a region of its own."""
OPENING = frozenset(("additionalProperties", "unevaluatedProperties"))
"""Keywords by which a schema says itself whether objects are open."""

Matches = Callable[[Subschema, str], bool]
"""Whether the name of a property matches a pattern of a schema."""


class ObjectForms:
    """forms: what a conjunction of schemas allows."""

    def __init__(
        self, rules: Rules, patterns: Patterns, validator: Validator, forms: Callable[[Conjunction], list[Form]]
    ) -> None:
        self._rules = rules
        self._patterns = patterns
        self._validator = validator
        self._forms = forms

    def build(self, schemas: Conjunction) -> ObjectForm | None:
        """The objects that schemas without choices allow; None if there are none. Raises SchemaError."""
        form = ObjectForm()
        listed: dict[str, None] = {}
        needed: dict[str, None] = {}
        for schema in schemas:
            listed |= dict.fromkeys(mapping(schema, "properties"))
            needed |= dict.fromkeys(required(schema))
            least = count(schema, "minProperties") or 0
            if least > form.min_properties:
                form.min_properties, form.minimum_schema = least, schema
            form.max_properties = lower(form.max_properties, count(schema, "maxProperties"))
        names = [*listed, *(name for name in needed if name not in listed)]
        closed = self._is_closed(schemas, len(names), form.min_properties)
        allowed = self._allowed_names(schemas)
        for name in names:
            conjunction = self._property(schemas, name)
            is_allowed = allowed is None or self._is_allowed(name, schemas)
            if is_allowed and not _is_void(conjunction):
                form.properties.append(Property(name, conjunction, name in needed))
            elif name in needed:
                return None
        if not closed or any(mapping(schema, "patternProperties") for schema in schemas):
            self._add_unlisted(form, schemas, names, allowed, closed=closed)
        if form.max_properties is not None and max(form.min_properties, len(needed)) > form.max_properties:
            return None
        return form if form.regions or len(form.properties) >= form.min_properties else None

    def _is_closed(self, schemas: Conjunction, num_names: int, least: int) -> bool:
        """Whether there are no properties but those that are listed, by the rules and not by what a schema says."""
        if not self._rules.closed or least > num_names:
            return False
        return lists_properties(schemas) and all(OPENING.isdisjoint(schema.schema) for schema in schemas)

    # ---- what a property has to be

    def _property(self, schemas: Conjunction, name: str) -> Conjunction:
        return self._values(schemas, name, lambda schema, pattern: self._search(schema, pattern, name))

    def _values(self, schemas: Conjunction, name: str | None, matches: Matches) -> Conjunction:
        """What a property has to be whose name is listed, or that has any of the names that match. name: None for
        these."""
        found: list[Subschema] = []
        evaluated = False
        for schema in schemas:
            before = len(found)
            if name is not None and name in mapping(schema, "properties"):
                found.append(schema.child("properties", name))
            found += [
                schema.child("patternProperties", pattern)
                for pattern in mapping(schema, "patternProperties")
                if matches(schema, pattern)
            ]
            if len(found) == before and "additionalProperties" in schema:
                found.append(schema.child("additionalProperties"))
            evaluated |= len(found) > before and not schema.derived
        if not evaluated:
            found += [schema.child("unevaluatedProperties") for schema in schemas if "unevaluatedProperties" in schema]
        return meaningful(found)

    def _search(self, schema: Subschema, pattern: str, name: str) -> bool:
        strings = Strings(patterns=[(pattern, ())])
        if self._patterns.error(strings) and not self._rules.lenient:
            raise schema.error(WRONG, "patternProperties")
        return self._patterns.match(strings, name)

    # ---- names that propertyNames allows

    def _allowed_names(self, schemas: Conjunction) -> list[Form] | None:
        """None if nothing is said."""
        names = tuple(schema.child("propertyNames") for schema in schemas if "propertyNames" in schema)
        return self._forms((*names, names[0].derive({"type": ["string"]}))) if names else None

    def _is_allowed(self, name: str, schemas: Conjunction) -> bool:
        return all(
            self._validator.valid(name, schema.child("propertyNames"))
            for schema in schemas
            if "propertyNames" in schema
        )

    # ---- properties that are not listed

    def _add_unlisted(
        self, form: ObjectForm, schemas: Conjunction, names: list[str], allowed: list[Form] | None, *, closed: bool
    ) -> None:
        """Those whose names patterns or propertyNames spell out, each by itself, and the others by which patterns their
        names match."""
        patterns = list({pattern: None for schema in schemas for pattern in mapping(schema, "patternProperties")})
        spelled = [name for pattern in patterns for name in spelled_texts(pattern) if self._is_allowed(name, schemas)]
        spelled += [name for each in allowed or () if isinstance(each, Literals) for name in each.values]
        more = [name for name in dict.fromkeys(spelled) if name not in names]
        for name in more:
            conjunction = self._property(schemas, name)
            matched = any(
                self._search(schema, each, name) for schema in schemas for each in mapping(schema, "patternProperties")
            )
            if (matched or not closed) and not _is_void(conjunction):
                form.properties.append(Property(name, conjunction, False))
        strings = [each for each in allowed or () if isinstance(each, Strings)]
        if allowed is None or strings:
            form.regions += self._regions(schemas, patterns, [*names, *more], strings, closed=closed)

    def _regions(
        self, schemas: Conjunction, patterns: list[str], names: list[str], strings: list[Strings], *, closed: bool
    ) -> Iterator[Region]:
        """names: of none of these. strings: what propertyNames allows; empty if it is not said."""
        for matching in _sets(patterns):
            if closed and not matching:
                continue
            conjunction = self._values(schemas, None, partial(_is_among, matching))
            if _is_void(conjunction):
                continue
            others = [pattern for pattern in patterns if pattern not in matching]
            terminal = self._name(schemas, matching, others, names, strings)
            if terminal is None or not (matching or strings) or self._patterns.matches_any(terminal):
                yield Region(terminal, conjunction)

    def _name(
        self,
        schemas: Conjunction,
        matching: tuple[str, ...],
        others: list[str],
        names: list[str],
        strings: list[Strings],
    ) -> str | None:
        """A terminal of the names of a region; None for any name."""
        if not (matching or others or names or strings):
            return None
        try:
            more = [quote_pattern(pattern) for pattern in matching]
            more += [f"~{quote_pattern(pattern)}" for pattern in others]
            more += [f"({' | '.join(f'({each.terminal()})' for each in strings)})"] if strings else []
            return Strings(excluded_texts=names).terminal(more, escapes=not more)
        except Unanchored:
            raise _unanchored(schemas) from None


def lists_properties(schemas: Conjunction) -> bool:
    """Whether the author lists the properties of an object."""
    return any(not schema.derived and ("properties" in schema or "patternProperties" in schema) for schema in schemas)


def _is_among(matching: tuple[str, ...], _schema: Subschema, pattern: str) -> bool:
    return pattern in matching


def _is_void(conjunction: Conjunction) -> bool:
    return any(schema.schema is False for schema in conjunction)


def _sets(patterns: list[str]) -> Iterable[tuple[str, ...]]:
    """Which patterns a name may match: each set of them, or one at a time if there are many."""
    if len(patterns) > _MOST_REGIONS:
        return [*((pattern,) for pattern in patterns), ()]
    bits = range(2 ** len(patterns) - 1, -1, -1)
    return [tuple(pattern for place, pattern in enumerate(patterns) if chosen >> place & 1) for chosen in bits]


def _unanchored(schemas: Conjunction) -> SchemaError:
    schema = next(schema for schema in schemas if "patternProperties" in schema or "propertyNames" in schema)
    keyword = "patternProperties" if "patternProperties" in schema else "propertyNames"
    return schema.error("^ may only be the beginning of a pattern and $ its end", keyword)
