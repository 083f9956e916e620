"""What subschemas that must all hold allow together: forms of one type each, without any choice left.

A conjunction of subschemas is what a state is to an automaton: references, allOf and what applies to a property or an
item lead to further conjunctions of the same subschemas, of which there are finitely many, so recursion closes wherever
it occurs. Each choice (anyOf, oneOf, not, if, dependencies) splits a conjunction into several. Where a part cannot be
said, less is allowed than the schema does, never more, so what is written is valid; `Rules` names the exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.text.json_schema.document import REFERENCES, Document, SchemaError, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.forms import Arrays, Conjunction, Form, Literals, ObjectForm
from tessera.text.json_schema.keywords import (
    APPLICATORS,
    ASSERTIONS,
    BROKEN,
    CHOICES,
    NONE_OF,
    UNLESS,
    UNLIKE,
    bounds,
    count,
    dependencies,
    is_number,
    items,
    lower,
    meaningful,
    named_values,
    required,
    subschemas_of,
    types_of,
)
from tessera.text.json_schema.negation import negation
from tessera.text.json_schema.numbers import Numbers
from tessera.text.json_schema.objects import OPENING, ObjectForms, lists_properties
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.rules import ENDLESS, EXCLUSIVE, TOO_COMPLEX, Rules
from tessera.text.json_schema.strings import Strings
from tessera.text.json_schema.validator import Validator, is_multiple

MAX_CASES = 1_000
"""Of one conjunction."""
MAX_CHOICES = 200
MAX_SPLITS = 10_000
"""Of all conjunctions of a schema: seconds of one processor."""
_DEEPEST = 4
"""Levels within which it is tried whether schemas exclude one another."""


Choice = tuple[str, Subschema, str | None]
"""A keyword, the schema that has it, and a key within it or None."""
_NONE: Mapping[Choice, Conjunction] = MappingProxyType({})


class _Flat(NamedTuple):
    # Those that say something themselves.
    schemas: Conjunction
    # What is still to be chosen.
    choices: list[Choice]


class Cases:
    """Raises SchemaError for what cannot be said."""

    def __init__(self, document: Document, patterns: Patterns, rules: Rules) -> None:
        self.rules = rules
        self._document = document
        self._patterns = patterns
        self._validator = Validator(document, patterns)
        self._objects = ObjectForms(rules, patterns, self._validator, self.forms)
        self._forms: dict[frozenset[Subschema], list[Form]] = {}
        self._voids: dict[frozenset[Subschema], bool] = {}
        self._plains: dict[Subschema, Subschema] = {}
        self._depth = 0
        self._num_splits = 0

    def forms(self, conjunction: Conjunction) -> list[Form]:
        """What values may be; empty for none."""
        key = frozenset(conjunction)
        if key not in self._forms:
            self._forms[key] = list(self._expand(conjunction))
        return self._forms[key]

    def _expand(self, conjunction: Conjunction) -> Iterator[Form]:
        flat = self._flat(conjunction)
        if flat is None:
            return
        values = named_values(flat.schemas)
        if values is not None:
            valid = [value for value in values if all(self._validator.valid(value, by) for by in conjunction)]
            if valid:
                yield Literals(valid)
            return
        for number, schemas in enumerate(self._split(conjunction, _NONE)):
            if number == MAX_CASES:
                raise SchemaError("", TOO_COMPLEX)
            yield from self._typed_forms(schemas)

    # ---- choices

    def _flat(self, conjunction: Conjunction, chosen: Mapping[Choice, Conjunction] = _NONE) -> _Flat | None:
        """Follows references and allOf, and the choices that were made, each where it stands: properties come in the
        order in which an author lists them. None: false is among them."""
        asserting: dict[Subschema, None] = {}
        choices: dict[Choice, None] = {}
        known: set[Subschema] = set()
        above: dict[Subschema, Subschema] = {}
        waiting: list[tuple[Subschema, bool]] = [(schema, False) for schema in reversed(conjunction)]
        while waiting:
            schema, itself = waiting.pop()
            if itself:
                asserting[schema] = None
                continue
            if schema in known or schema.schema is True:
                continue
            known.add(schema)
            if schema.schema is False:
                return None
            if not isinstance(schema.schema, dict):
                raise schema.error("must be an object, true or false")
            parts: list[tuple[Subschema, bool]] = []
            for keyword in self._keywords(schema):
                if keyword in REFERENCES:
                    target = self._target(schema)
                    if _is_within(schema, target, above):
                        raise SchemaError("", ENDLESS)
                    parts.append((target, False))
                elif keyword == "allOf":
                    parts += [(each, False) for each in subschemas_of(schema, "allOf")]
                elif keyword in CHOICES:
                    for choice in _choices(schema, keyword):
                        choices[choice] = None
                        parts += [(each, False) for each in chosen.get(choice, ())]
                else:
                    parts.append((schema, True))
            above.update((part, schema) for part, itself in parts if not itself and part not in known)
            waiting += reversed(parts)
        return _Flat(tuple(asserting), [choice for choice in choices if choice not in chosen])

    def _keywords(self, schema: Subschema) -> list[str]:
        """The keywords that say something, in their order; of those that say it by themselves only one, which is
        `properties` if it is among them."""
        found: list[str] = []
        alone = self._document.references_stand_alone and not schema.derived
        place = "properties" if "properties" in schema else None
        for keyword in schema.schema:
            if keyword in REFERENCES and alone:
                return [keyword]
            if keyword in ASSERTIONS and place in (None, keyword):
                place = ""
                found.append(keyword)
            elif keyword in APPLICATORS:
                found.append(keyword)
        return found

    def _target(self, schema: Subschema) -> Subschema:
        try:
            if self._document.is_circle(schema):
                raise schema.error("it leads to itself", next(name for name in REFERENCES if name in schema))
            return self._document.follow(schema)
        except SchemaError:
            if self.rules.lenient:
                return schema.derive(True)
            raise

    def _split(self, conjunction: Conjunction, chosen: Mapping[Choice, Conjunction]) -> Iterator[Conjunction]:
        """The conjunctions that remain when each choice has been made one way or another."""
        self._num_splits += 1
        if self._num_splits > MAX_SPLITS:
            raise SchemaError("", TOO_COMPLEX)
        flat = self._flat(conjunction, chosen)
        if flat is None or self._clash(flat.schemas):
            return
        if not flat.choices:
            yield flat.schemas
            return
        if len(chosen) > MAX_CHOICES:
            raise SchemaError("", TOO_COMPLEX)
        choice = flat.choices[0]
        for option in self._options(choice, flat.schemas, last=len(flat.choices) == 1):
            yield from self._split(conjunction, {**chosen, choice: option})

    def _options(self, choice: Choice, schemas: Conjunction, *, last: bool) -> list[Conjunction]:
        """schemas: what holds beside it. last: no other choice is left."""
        keyword, schema, key = choice
        match keyword:
            case "anyOf":
                return [(each,) for each in subschemas_of(schema, "anyOf")]
            case "oneOf":
                return self._exclude_each_other(schema, schemas, last=last)
            case "not":
                return negation(self._document, schema.child("not")).options
            case "unless":
                unless, names = schema.get(UNLESS)
                return negation(self._document, unless, names).options
            case "if":
                condition = schema.child("if")
                holds = (condition, *((schema.child("then"),) if "then" in schema else ()))
                fails = (schema.derive({"not": condition}), *((schema.child("else"),) if "else" in schema else ()))
                return [holds, fails]
        assert key is not None
        needed = schema.get(keyword)[key]
        absent = schema.derive({"properties": {key: False}})
        if isinstance(needed, list | str):
            names = [needed] if isinstance(needed, str) else needed
            return [(absent,), (schema.derive({"type": ["object"], "required": [key, *names]}),)]
        return [(absent,), (schema.derive({"type": ["object"], "required": [key]}), schema.child(keyword, key))]

    def _exclude_each_other(self, schema: Subschema, schemas: Conjunction, *, last: bool) -> list[Conjunction]:
        """The schemas of oneOf, each without what is valid by another of them."""
        every = subschemas_of(schema, "oneOf")
        beside = tuple(self._plain(each) for each in schemas)
        options: list[Conjunction] = []
        for place, one in enumerate(every):
            named = self._closing(beside, one, last=last)
            rest = (*every[:place], *every[place + 1 :])  # of which one may be the same
            others = [other for other in rest if not self.void((*beside, one, *named.closing, other))]
            without = [schema.derive({UNLESS: (other, named.names)}) for other in others]
            if not others or not self.void((*beside, one, *without)):
                options.append((one, *without))
            elif not all(negation(self._document, other, named.names).whole for other in others):
                if self.rules.strict:
                    raise schema.error(EXCLUSIVE, "oneOf")
                options.append((one,))
        if not options and every:
            if self.rules.strict:
                raise schema.error(EXCLUSIVE, "oneOf")
            return [(each,) for each in every]
        return options

    def _plain(self, schema: Subschema) -> Subschema:
        """A schema without its choices."""
        if schema not in self._plains:
            self._plains[schema] = schema.select(ASSERTIONS)
        return self._plains[schema]

    def _closing(self, schemas: Conjunction, alternative: Subschema, *, last: bool) -> _Closing:
        """The names of the properties that one of several schemas has with what stands beside it, and what closes it if
        nothing says otherwise."""
        flat = self._flat((*schemas, alternative))
        is_open = not (self.rules.closed and last) or flat is None or not lists_properties(flat.schemas)
        names: set[str] = set()
        patterns: set[str] = set()
        for schema in (*schemas, *self._in_place((alternative,))):
            names.update(schema.get("properties") or (), required(schema))
            patterns.update(schema.get("patternProperties") or ())
            is_open |= not _SAYING.isdisjoint(schema.schema)
        if is_open:
            return _Closing(names, ())
        closed = dict.fromkeys(names, True)
        matched = dict.fromkeys(patterns, True)
        derived = alternative.derive(
            {"properties": closed, "patternProperties": matched, "additionalProperties": False}
        )
        return _Closing(names, (derived,))

    def _in_place(self, conjunction: Conjunction) -> Iterator[Subschema]:
        """All schemas that may say something of the same value."""
        known: set[Subschema] = set()
        waiting = list(conjunction)
        while waiting:
            schema = waiting.pop()
            if schema in known or not isinstance(schema.schema, dict):
                continue
            known.add(schema)
            yield schema
            if any(keyword in schema for keyword in REFERENCES):
                waiting.append(self._target(schema))
            for keyword in ("allOf", "anyOf", "oneOf"):
                waiting += subschemas_of(schema, keyword)
            waiting += [schema.child(keyword) for keyword in ("if", "then", "else") if keyword in schema]
            waiting += [
                schema.child(*path) for path in dependencies(schema) if isinstance(schema.get(path[0])[path[1]], dict)
            ]

    # ---- whether anything is left

    def void(self, conjunction: Conjunction) -> bool:
        """Whether it is certain that no value is valid."""
        key = frozenset(conjunction)
        found = self._voids.get(key)
        if found is not None:
            return found
        if self._depth >= _DEEPEST:
            return False
        self._voids[key] = False  # what refers to itself may be valid
        self._depth += 1
        try:
            found = all(self._void(form) for form in self.forms(conjunction))
        finally:
            self._depth -= 1
        self._voids[key] = found
        return found

    def _void(self, form: Form) -> bool:
        match form:
            case Strings():
                return self._patterns.none(form)
            case Numbers():
                return form.none
            case Arrays():
                firsts = [
                    *form.prefix,
                    *([] if form.rest is None else [form.rest] * (form.min_items > len(form.prefix))),
                ]
                if form.contains is not None and (form.rest is None or self.void((*form.rest, *form.contains))):
                    return True
                return any(self.void(each) for each in firsts[: form.min_items])
            case ObjectForm():
                return any(each.required and self.void(each.conjunction) for each in form.properties)
        return False

    def _clash(self, schemas: Conjunction, *, within: bool = True) -> bool:
        """Whether it is plain that no value is valid by what makes no choice. within: look into properties too."""
        types = types_of(schemas)
        values = named_values(schemas)
        if values is not None:
            return not any(all(self._validator.valid(value, by) for by in schemas) for value in values)
        if not types:
            return True
        if not within or types != {"object"}:
            return False
        for name in {name: None for schema in schemas for name in required(schema)}:
            below = tuple(
                schema.child("properties", name) for schema in schemas if name in (schema.get("properties") or ())
            )
            flat = self._flat(below)
            if flat is None or self._clash(flat.schemas, within=False):
                return True
        return False

    # ---- forms of one type

    def _typed_forms(self, schemas: Conjunction) -> Iterator[Form]:
        values = named_values(schemas)
        if values is not None:
            valid = [value for value in values if all(self._validator.valid(value, by) for by in schemas)]
            if valid:
                yield Literals(valid)
            return
        types = types_of(schemas)
        excluded = [value for schema in schemas for value in schema.get(NONE_OF, ())]
        plain = [None] * ("null" in types) + [True, False] * ("boolean" in types)
        plain = [value for value in plain if not any(value is other for other in excluded)]
        if plain:
            yield Literals(plain)
        if "number" in types or "integer" in types:
            numbers = self._numbers(schemas, excluded, integer="number" not in types)
            if not numbers.none:
                yield numbers
        if "string" in types:
            strings = self._strings(schemas, excluded)
            if strings.max_length is None or strings.min_length <= strings.max_length:
                yield strings
        if "array" in types:
            yield from self._arrays(schemas)
        if "object" in types and (objects := self._objects.build(schemas)) is not None:
            yield objects

    def _numbers(self, schemas: Conjunction, excluded: list[Any], *, integer: bool) -> Numbers:
        numbers = Numbers(integer=integer, excluded=[value for value in excluded if is_number(value)])
        for schema in schemas:
            for value, is_open, is_low in bounds(schema):
                (numbers.at_least if is_low else numbers.at_most)(value, is_open=is_open)
            step = schema.get("multipleOf")
            if step is not None:
                if not is_number(step) or step <= 0:
                    raise schema.error("must be a number above 0", "multipleOf")
                numbers.multiples.append(step)
            numbers.fractional |= BROKEN in schema
        numbers.excluded = [value for value in numbers.excluded if is_multiple(value, numbers.multiples)]
        return numbers

    def _strings(self, schemas: Conjunction, excluded: list[Any]) -> Strings:
        strings = Strings(excluded_texts=[value for value in excluded if isinstance(value, str)])
        for schema in schemas:
            strings.min_length = max(strings.min_length, count(schema, "minLength") or 0)
            strings.max_length = lower(strings.max_length, count(schema, "maxLength"))
            for keyword, found in (("pattern", strings.patterns), (UNLIKE, strings.excluded_patterns)):
                if keyword not in schema:
                    continue
                pattern = schema.get(keyword)
                if not isinstance(pattern, str):
                    raise schema.error("must be a string", keyword)
                place = (*schema.place, "pattern")
                wrong = self.rules.lenient and self._patterns.error(Strings(patterns=[(pattern, place)]))
                if not wrong and (pattern, place) not in found:
                    found.append((pattern, place))
            known = schema.get("format")
            if isinstance(known, str) and known in FORMATS and FORMATS[known] not in strings.formats:
                strings.formats.append(FORMATS[known])
        return strings

    def _arrays(self, schemas: Conjunction) -> Iterator[Arrays]:
        form = Arrays()
        parts = [(schema, *items(schema, self._document)) for schema in schemas]
        lengths = [len(schema.get(prefix[0])) if prefix else 0 for schema, prefix, _ in parts]
        for place in range(max(lengths, default=0)):
            paths = [
                (schema, (*prefix, place) if place < length else rest)
                for (schema, prefix, rest), length in zip(parts, lengths, strict=True)
            ]
            form.prefix.append(meaningful(schema.child(*path) for schema, path in paths if path))
        said = [schema.child(*rest) for schema, _, rest in parts if rest]
        form.rest = meaningful(said)
        if not said:
            form.rest = tuple(schema.child("unevaluatedItems") for schema in schemas if "unevaluatedItems" in schema)
        for schema in schemas:
            form.min_items = max(form.min_items, count(schema, "minItems") or 0)
            form.max_items = lower(form.max_items, count(schema, "maxItems"))
            if schema.get("uniqueItems") is True:
                form.unique = schema
            self._contains(form, schema)
        if form.max_items is None or form.min_items <= form.max_items:
            yield form

    def _contains(self, form: Arrays, schema: Subschema) -> None:
        if "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema):
            return
        simple = schema.get("minContains", 1) == 1 and "maxContains" not in schema
        if not simple or form.contains is not None or form.prefix:
            if self.rules.lenient:
                return
            raise schema.error("is supported once, for one item, and without prefixItems", "contains")
        form.contains = (schema.child("contains"),)
        form.min_items = max(form.min_items, 1)


_SAYING = OPENING | {"minProperties"}


class _Closing(NamedTuple):
    names: set[str]
    closing: Conjunction


def _is_within(schema: Subschema | None, whole: Subschema, above: Mapping[Subschema, Subschema]) -> bool:
    """Whether a schema is a part of another that says something of the same value. above: of which each is a part."""
    while schema is not None and schema is not whole:
        schema = above.get(schema)
    return schema is whole


def _choices(schema: Subschema, keyword: str) -> list[Choice]:
    if keyword == "if":
        return [(keyword, schema, None)] if "then" in schema or "else" in schema else []
    if keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        return [(keyword, schema, name) for name in schema.get(keyword)]
    return [(keyword, schema, None)]
