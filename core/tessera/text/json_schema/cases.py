"""What subschemas that must all hold allow together: forms of one type each, without any choice left.

A conjunction of subschemas is what a state is to an automaton: references, allOf and what applies to a property or an
item lead to further conjunctions of the same subschemas, of which there are finitely many, so recursion closes wherever
it occurs. Each choice (anyOf, oneOf, not, if, dependencies) splits a conjunction into several. Where a part cannot be
said, less is allowed than the schema does, never more, so what is written is valid; `Rules` names the exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.text.json_schema.document import REFERENCES, Document, SchemaError, Subschema
from tessera.text.json_schema.formats import FORMATS
from tessera.text.json_schema.literals import (
    BROKEN,
    NONE_OF,
    UNLESS,
    UNLIKE,
    Validator,
    bounds,
    dependencies,
    is_multiple,
    is_number,
    items,
    required,
)
from tessera.text.json_schema.negation import TYPES, negation
from tessera.text.json_schema.numbers import Numbers
from tessera.text.json_schema.patterns import Patterns
from tessera.text.json_schema.strings import Strings, Unanchored, quote_pattern, texts

MAX_CASES = 1_000
"""Of one conjunction."""
MAX_CHOICES = 200
_MOST_REGIONS = 3
_DEEPEST = 4
"""Levels within which it is tried whether schemas exclude one another."""
TOO_COMPLEX = "it is too large or too complex"
NONE = "no value is valid by it"
ENDLESS = f"{NONE}: it demands itself, without end"
EXCLUSIVE = "its schemas must exclude one another; use anyOf"

Conjunction = tuple[Subschema, ...]


class Rules(NamedTuple):
    """How a schema is read. closed: objects have no properties but those that the schema lists, where it does not say.
    strict: true refuses oneOf whose schemas may hold together, which is taken as anyOf otherwise; false leaves out
    uniqueItems where it cannot be enforced, which is refused otherwise. lenient: leave out all that is refused."""

    closed: bool = True
    strict: bool | None = None
    lenient: bool = False

    @property
    def loose(self) -> bool:
        return self.lenient or self.strict is False


# ---- forms -----------------------------------------------------------------------------------------------------------


@dataclass
class Literals:
    values: list[Any]


@dataclass
class Arrays:
    """prefix: of the first items; rest: of the others, None if there are none. holds: of one item at least."""

    prefix: list[Conjunction] = field(default_factory=list)
    rest: Conjunction | None = ()
    least: int = 0
    most: int | None = None
    unique: Subschema | None = None
    holds: Conjunction | None = None


class Member(NamedTuple):
    name: str
    conjunction: Conjunction
    required: bool


class Region(NamedTuple):
    """Properties by what their names match. name: a terminal of Lark; None: any name."""

    name: str | None
    conjunction: Conjunction


@dataclass
class Objects:
    """counted: the schema that says how many properties there are at least."""

    members: list[Member] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    least: int = 0
    most: int | None = None
    counted: Subschema | None = None


Form = Literals | Numbers | Strings | Arrays | Objects

_CHOICES = ("anyOf", "oneOf", "not", "if", "dependencies", "dependentRequired", "dependentSchemas", UNLESS)
_OWN = frozenset(
    (
        *("type", "enum", "const", NONE_OF, UNLIKE, BROKEN),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("unevaluatedItems", "properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties"),
    )
)
_SAYS = _OWN.union(_CHOICES, REFERENCES, ("allOf",))


_APPLIED = frozenset((*_CHOICES, *REFERENCES, "allOf"))
_NONE: Mapping[Any, Any] = MappingProxyType({})

Choice = tuple[str, Subschema, str | None]
"""A keyword, the schema that has it, and a key within it or None."""


class _Flat(NamedTuple):
    """own: what says something itself. choices: those that are still to be made."""

    own: Conjunction
    choices: list[Choice]


class Cases:
    """Raises SchemaError for what cannot be said."""

    def __init__(self, document: Document, patterns: Patterns, rules: Rules) -> None:
        self.rules = rules
        self._document = document
        self._patterns = patterns
        self._validator = Validator(document, patterns)
        self._forms: dict[frozenset[Subschema], list[Form]] = {}
        self._voids: dict[frozenset[Subschema], bool] = {}
        self._plains: dict[Subschema, Subschema] = {}
        self._depth = 0

    def forms(self, conjunction: Conjunction) -> list[Form]:
        """What values may be; empty for none."""
        key = frozenset(conjunction)
        if key not in self._forms:
            self._forms[key] = list(self._made(conjunction))
        return self._forms[key]

    def _made(self, conjunction: Conjunction) -> Iterator[Form]:
        flat = self._flat(conjunction)
        if flat is None:
            return
        values = _named(flat.own)
        if values is not None:
            valid = [value for value in values if all(self._validator.valid(value, by) for by in conjunction)]
            if valid:
                yield Literals(valid)
            return
        for number, own in enumerate(self._split(conjunction, _NONE)):
            if number == MAX_CASES:
                raise SchemaError("", TOO_COMPLEX)
            yield from self._of_types(own)

    # ---- choices

    def _flat(self, conjunction: Conjunction, made: Mapping[Choice, Conjunction] = _NONE) -> _Flat | None:
        """Follows references and allOf, and the choices that were made, each where it stands: properties come in the
        order in which an author lists them. None: false is among them."""
        own: dict[Subschema, None] = {}
        choices: dict[Choice, None] = {}
        known: set[Subschema] = set()
        above: dict[Subschema, Subschema] = {}
        waiting: list[tuple[Subschema, bool]] = [(schema, False) for schema in reversed(conjunction)]
        while waiting:
            schema, itself = waiting.pop()
            if itself:
                own[schema] = None
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
                    parts += [(each, False) for each in _each(schema, "allOf")]
                elif keyword in _CHOICES:
                    for choice in _choices(schema, keyword):
                        choices[choice] = None
                        parts += [(each, False) for each in made.get(choice, ())]
                else:
                    parts.append((schema, True))
            above.update((part, schema) for part, itself in parts if not itself and part not in known)
            waiting += reversed(parts)
        return _Flat(tuple(own), [choice for choice in choices if choice not in made])

    def _keywords(self, schema: Subschema) -> list[str]:
        """The keywords that say something, in their order; of those of its own only one, which is `properties` if it is
        among them."""
        found: list[str] = []
        alone = self._document.references_stand_alone and not schema.derived
        own = "properties" if "properties" in schema else None
        for keyword in schema.schema:
            if keyword in REFERENCES and alone:
                return [keyword]
            if keyword in _OWN and own in (None, keyword):
                own = ""
                found.append(keyword)
            elif keyword in _APPLIED:
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

    def _split(self, conjunction: Conjunction, made: Mapping[Choice, Conjunction]) -> Iterator[Conjunction]:
        """The conjunctions that remain when each choice has been made one way or another."""
        flat = self._flat(conjunction, made)
        if flat is None or self._clash(flat.own):
            return
        if not flat.choices:
            yield flat.own
            return
        if len(made) > MAX_CHOICES:
            raise SchemaError("", TOO_COMPLEX)
        choice = flat.choices[0]
        for option in self._options(choice, flat.own, last=len(flat.choices) == 1):
            yield from self._split(conjunction, {**made, choice: option})

    def _options(self, choice: Choice, own: Conjunction, *, last: bool) -> list[Conjunction]:
        """own: what holds beside it. last: no other choice is left."""
        keyword, schema, key = choice
        match keyword:
            case "anyOf":
                return [(each,) for each in _each(schema, "anyOf")]
            case "oneOf":
                return self._exclusive(schema, own, last=last)
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

    def _exclusive(self, schema: Subschema, own: Conjunction, *, last: bool) -> list[Conjunction]:
        """The schemas of oneOf, each without what is valid by another of them."""
        every = _each(schema, "oneOf")
        own = tuple(self._plain(each) for each in own)
        options: list[Conjunction] = []
        for place, one in enumerate(every):
            named = self._closing(own, one, last=last)
            rest = (*every[:place], *every[place + 1 :])  # of which one may be the same
            others = [other for other in rest if not self._apart((*own, one, *named.closing), other)]
            without = [schema.derive({UNLESS: (other, named.names)}) for other in others]
            if not others or not self.void((*own, one, *without)):
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
            self._plains[schema] = schema.only(_OWN)
        return self._plains[schema]

    def _apart(self, one: Conjunction, other: Subschema) -> bool:
        return self.void((*one, other))

    def _closing(self, own: Conjunction, one: Subschema, *, last: bool) -> _Closing:
        """The names of the properties that one of several schemas has with what stands beside it, and what closes it if
        nothing says otherwise."""
        flat = self._flat((*own, one))
        is_open = not (self.rules.closed and last) or flat is None or not _listing(flat.own)
        names: set[str] = set()
        patterns: set[str] = set()
        for schema in (*own, *self._in_place((one,))):
            names.update(schema.get("properties") or (), required(schema))
            patterns.update(schema.get("patternProperties") or ())
            is_open |= not _SAYING.isdisjoint(schema.schema)
        if is_open:
            return _Closing(names, ())
        closed = dict.fromkeys(names, True)
        matched = dict.fromkeys(patterns, True)
        derived = one.derive({"properties": closed, "patternProperties": matched, "additionalProperties": False})
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
                waiting += _each(schema, keyword)
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
                firsts = [*form.prefix, *([] if form.rest is None else [form.rest] * (form.least > len(form.prefix)))]
                if form.holds is not None and (form.rest is None or self.void((*form.rest, *form.holds))):
                    return True
                return any(self.void(each) for each in firsts[: form.least])
            case Objects():
                return any(member.required and self.void(member.conjunction) for member in form.members)
        return False

    def _clash(self, own: Conjunction, *, within: bool = True) -> bool:
        """Whether it is plain that no value is valid by what makes no choice. within: look into properties too."""
        types = _types(own)
        values = _named(own)
        if values is not None:
            return not any(all(self._validator.valid(value, by) for by in own) for value in values)
        if not types:
            return True
        if not within or types != {"object"}:
            return False
        for name in {name: None for schema in own for name in required(schema)}:
            below = tuple(
                schema.child("properties", name) for schema in own if name in (schema.get("properties") or ())
            )
            flat = self._flat(below)
            if flat is None or self._clash(flat.own, within=False):
                return True
        return False

    # ---- forms of one type

    def _of_types(self, own: Conjunction) -> Iterator[Form]:
        values = _named(own)
        if values is not None:
            valid = [value for value in values if all(self._validator.valid(value, by) for by in own)]
            if valid:
                yield Literals(valid)
            return
        types = _types(own)
        excluded = [value for schema in own for value in schema.get(NONE_OF, ())]
        plain = [None] * ("null" in types) + [True, False] * ("boolean" in types)
        plain = [value for value in plain if not any(value is other for other in excluded)]
        if plain:
            yield Literals(plain)
        if "number" in types or "integer" in types:
            numbers = self._numbers(own, excluded, integer="number" not in types)
            if not numbers.none:
                yield numbers
        if "string" in types:
            strings = self._strings(own, excluded)
            if strings.most is None or strings.least <= strings.most:
                yield strings
        if "array" in types:
            yield from self._arrays(own)
        if "object" in types:
            yield from self._objects(own)

    def _numbers(self, own: Conjunction, excluded: list[Any], *, integer: bool) -> Numbers:
        numbers = Numbers(integer=integer, excluded=[value for value in excluded if is_number(value)])
        for schema in own:
            for value, is_open, is_low in bounds(schema):
                (numbers.at_least if is_low else numbers.at_most)(value, is_open=is_open)
            step = schema.get("multipleOf")
            if step is not None:
                if not is_number(step) or step <= 0:
                    raise schema.error("must be a number above 0", "multipleOf")
                numbers.multiples.append(step)
            numbers.broken |= BROKEN in schema
        numbers.excluded = [value for value in numbers.excluded if is_multiple(value, numbers.multiples)]
        return numbers

    def _strings(self, own: Conjunction, excluded: list[Any]) -> Strings:
        strings = Strings(excluded=[value for value in excluded if isinstance(value, str)])
        for schema in own:
            strings.least = max(strings.least, count(schema, "minLength") or 0)
            strings.most = _lower(strings.most, count(schema, "maxLength"))
            for keyword, found in (("pattern", strings.patterns), (UNLIKE, strings.unlike)):
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
            if isinstance(known, str) and known in FORMATS and FORMATS[known] not in strings.wholes:
                strings.wholes.append(FORMATS[known])
        return strings

    def _arrays(self, own: Conjunction) -> Iterator[Arrays]:
        made = Arrays()
        parts = [(schema, *items(schema, self._document)) for schema in own]
        lengths = [len(schema.get(prefix[0])) if prefix else 0 for schema, prefix, _ in parts]
        for place in range(max(lengths, default=0)):
            paths = [
                (schema, (*prefix, place) if place < length else rest)
                for (schema, prefix, rest), length in zip(parts, lengths, strict=True)
            ]
            made.prefix.append(_together(schema.child(*path) for schema, path in paths if path))
        said = [schema.child(*rest) for schema, _, rest in parts if rest]
        made.rest = _together(said)
        if not said:
            made.rest = tuple(schema.child("unevaluatedItems") for schema in own if "unevaluatedItems" in schema)
        for schema in own:
            made.least = max(made.least, count(schema, "minItems") or 0)
            made.most = _lower(made.most, count(schema, "maxItems"))
            if schema.get("uniqueItems") is True:
                made.unique = schema
            self._contains(made, schema)
        if made.most is None or made.least <= made.most:
            yield made

    def _contains(self, made: Arrays, schema: Subschema) -> None:
        if "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema):
            return
        simple = schema.get("minContains", 1) == 1 and "maxContains" not in schema
        if not simple or made.holds is not None or made.prefix:
            if self.rules.lenient:
                return
            raise schema.error("is supported once, for one item, and without prefixItems", "contains")
        made.holds = (schema.child("contains"),)
        made.least = max(made.least, 1)

    def _objects(self, own: Conjunction) -> Iterator[Objects]:
        made = Objects()
        names: dict[str, None] = {}
        needed: dict[str, None] = {}
        for schema in own:
            names |= dict.fromkeys(_mapping(schema, "properties"))
            needed |= dict.fromkeys(required(schema))
            least = count(schema, "minProperties") or 0
            if least > made.least:
                made.least, made.counted = least, schema
            made.most = _lower(made.most, count(schema, "maxProperties"))
        names |= needed
        closed = self._closed(own, len(names), made.least)
        allowed = self._names_allowed(own)
        for name in names:
            if allowed is not None and not self._may_be_named(name, own):
                if name in needed:
                    return
                continue
            below = self._property(own, name)
            if any(schema.schema is False for schema in below):
                if name in needed:
                    return
                continue
            made.members.append(Member(name, below, name in needed))
        if not closed or any(_mapping(schema, "patternProperties") for schema in own):
            self._open(made, own, list(names), allowed, closed=closed)
        if made.most is not None and max(made.least, len(needed)) > made.most:
            return
        if made.regions or len(made.members) >= made.least:
            yield made

    def _closed(self, own: Conjunction, count: int, least: int) -> bool:
        if not self.rules.closed or least > count:
            return False
        return _listing(own) and all(_OPENING.isdisjoint(schema.schema) for schema in own)

    def _property(self, own: Conjunction, name: str) -> Conjunction:
        """What a property with this name has to be."""
        found: list[Subschema] = []
        evaluated = False
        for schema in own:
            before = len(found)
            if name in _mapping(schema, "properties"):
                found.append(schema.child("properties", name))
            found += [
                schema.child("patternProperties", pattern)
                for pattern in _mapping(schema, "patternProperties")
                if self._search(schema, pattern, name)
            ]
            if len(found) == before and "additionalProperties" in schema:
                found.append(schema.child("additionalProperties"))
            evaluated |= len(found) > before and not schema.derived
        if not evaluated:
            found += [schema.child("unevaluatedProperties") for schema in own if "unevaluatedProperties" in schema]
        return _together(found)

    def _search(self, schema: Subschema, pattern: str, name: str) -> bool:
        strings = Strings(patterns=[(pattern, ())])
        if self._patterns.error(strings) and not self.rules.lenient:
            raise schema.error(WRONG, "patternProperties")
        return self._patterns.match(strings, name)

    def _names_allowed(self, own: Conjunction) -> list[Form] | None:
        """propertyNames; None if nothing is said."""
        schemas = tuple(schema.child("propertyNames") for schema in own if "propertyNames" in schema)
        return self.forms((*schemas, schemas[0].derive({"type": ["string"]}))) if schemas else None

    def _may_be_named(self, name: str, own: Conjunction) -> bool:
        return all(
            self._validator.valid(name, schema.child("propertyNames")) for schema in own if "propertyNames" in schema
        )

    def _open(
        self, made: Objects, own: Conjunction, names: list[str], allowed: list[Form] | None, *, closed: bool
    ) -> None:
        """Properties that are not named: by which patterns their names match."""
        patterns = list({pattern: None for schema in own for pattern in _mapping(schema, "patternProperties")})
        spelled = [name for pattern in patterns for name in texts(pattern) if self._may_be_named(name, own)]
        spelled += [name for form in allowed or () if isinstance(form, Literals) for name in form.values]
        listed = {name: None for name in spelled if name not in names}
        for name in listed:
            below = self._property(own, name)
            matched = any(
                self._search(schema, each, name) for schema in own for each in _mapping(schema, "patternProperties")
            )
            if (matched or not closed) and not any(schema.schema is False for schema in below):
                made.members.append(Member(name, below, False))
        strings = [form for form in allowed or () if isinstance(form, Strings)]
        if allowed is not None and not strings:
            return
        for matching in _regions(patterns):
            if closed and not matching:
                continue
            below = self._region(own, matching)
            if any(schema.schema is False for schema in below):
                continue
            others = [pattern for pattern in patterns if pattern not in matching]
            terminal = self._name(own, matching, others, [*names, *listed], strings)
            if terminal is None or not (matching or strings) or self._patterns.matches_any(terminal):
                made.regions.append(Region(terminal, below))

    def _region(self, own: Conjunction, matching: tuple[str, ...]) -> Conjunction:
        found: list[Subschema] = []
        evaluated = False
        for schema in own:
            before = len(found)
            found += [
                schema.child("patternProperties", pattern)
                for pattern in _mapping(schema, "patternProperties")
                if pattern in matching
            ]
            if len(found) == before and "additionalProperties" in schema:
                found.append(schema.child("additionalProperties"))
            evaluated |= len(found) > before and not schema.derived
        if not evaluated:
            found += [schema.child("unevaluatedProperties") for schema in own if "unevaluatedProperties" in schema]
        return _together(found)

    def _name(
        self,
        own: Conjunction,
        matching: tuple[str, ...],
        others: list[str],
        names: list[str],
        strings: list[Strings],
    ) -> str | None:
        if not (matching or others or names or strings):
            return None
        try:
            more = [quote_pattern(pattern) for pattern in matching] + [
                f"~{quote_pattern(pattern)}" for pattern in others
            ]
            more += [f"({' | '.join(f'({each.terminal()})' for each in strings)})"] if strings else []
            return Strings(excluded=names).terminal(more, escapes=not more)
        except Unanchored:
            schema = next(schema for schema in own if "patternProperties" in schema or "propertyNames" in schema)
            keyword = "patternProperties" if "patternProperties" in schema else "propertyNames"
            raise schema.error("^ may only be the beginning of a pattern and $ its end", keyword) from None


class _Closing(NamedTuple):
    names: set[str]
    closing: Conjunction


_OPENING = frozenset(("additionalProperties", "unevaluatedProperties"))
_SAYING = _OPENING | {"minProperties"}


def _listing(own: Conjunction) -> bool:
    """Whether the author lists the properties of an object."""
    return any(not schema.derived and ("properties" in schema or "patternProperties" in schema) for schema in own)


WRONG = "the regular expression is wrong, or looks around"


def _regions(patterns: list[str]) -> Iterable[tuple[str, ...]]:
    """Which patterns a name may match: each set of them, or one at a time if there are many."""
    if len(patterns) > _MOST_REGIONS:
        return [*((pattern,) for pattern in patterns), ()]
    sets = range(2 ** len(patterns) - 1, -1, -1)
    return [tuple(pattern for place, pattern in enumerate(patterns) if chosen >> place & 1) for chosen in sets]


def _is_within(schema: Subschema | None, whole: Subschema, above: Mapping[Subschema, Subschema]) -> bool:
    """Whether a schema is a part of another that says something of the same value. above: of which each is a part."""
    while schema is not None and schema is not whole:
        schema = above.get(schema)
    return schema is whole


def _together(schemas: Iterable[Subschema]) -> Conjunction:
    """Without those that say nothing."""
    found = dict.fromkeys(schemas)
    return tuple(
        each
        for each in found
        if each.schema is not True and not (isinstance(each.schema, dict) and _SAYS.isdisjoint(each.schema))
    )


def _each(schema: Subschema, keyword: str) -> list[Subschema]:
    value = schema.get(keyword, ())
    if not isinstance(value, list | tuple):
        raise schema.error("must be a list of schemas", keyword)
    return [schema.child(keyword, place) for place in range(len(value))]


def _choices(schema: Subschema, keyword: str) -> list[Choice]:
    if keyword == "if":
        return [(keyword, schema, None)] if "then" in schema or "else" in schema else []
    if keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        return [(keyword, schema, name) for name in schema.get(keyword)]
    return [(keyword, schema, None)]


def _mapping(schema: Subschema, keyword: str) -> dict[str, Any]:
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


def _lower(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _types(own: Conjunction) -> frozenset[str]:
    """Raises SchemaError."""
    found = frozenset(TYPES)
    for schema in own:
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


def _named(own: Conjunction) -> list[Any] | None:
    """The values that a schema names; None if it names none."""
    for schema in own:
        if "const" in schema:
            return [schema.get("const")]
        if "enum" in schema:
            if not isinstance(schema.get("enum"), list):
                raise schema.error("must be a list of values", "enum")
            return list(schema.get("enum"))
    return None
