"""The parameters of a tool as its JSON Schema declares them: their names, types and possible values.

Both sides go by this: what a grammar demands of a call, and what a text without quotes is read as. A reference, allOf
and unions are followed; where a schema does not say a type, a parameter may have any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from tessera.parsing.values import JSON_TYPES, same_value, type_of, typed

MAX_DEPTH = 64
NOT_STRINGS = tuple(kind for kind in JSON_TYPES if kind != "string")
NESTED = ("array", "object")
DEFINITIONS = ("$defs", "definitions")
_DEFINITION = tuple(f"#/{key}/" for key in DEFINITIONS)
_ROOT = "parameters"
"""Where a schema that refers to more than definitions is put, among its own definitions."""
_ANNOTATIONS = frozenset(
    ("type", "title", "description", "default", "examples", "example", "deprecated", "nullable", "$comment", "$ref",
     "allOf", "anyOf", "oneOf", *DEFINITIONS)
)  # fmt: skip
"""Keywords that limit a text no further than its type does."""


@dataclass(frozen=True)
class Declared:
    """What a schema says of one value. types: in the order of the schema. values: None for any of its types. plain:
    whether a text among them may be any text."""

    types: tuple[str, ...] = JSON_TYPES
    values: tuple[Any, ...] | None = None
    plain: bool = True

    @classmethod
    def of_values(cls, values: Iterable[Any]) -> Declared:
        found = tuple(values)
        return cls(tuple(dict.fromkeys(map(type_of, found))), found, plain=False)

    @property
    def says_type(self) -> bool:
        return set(self.types) != set(JSON_TYPES)

    def both(self, other: Declared) -> Declared:
        """What both say."""
        first, second = (self, other) if self.says_type else (other, self)
        narrowed = [_narrower(one, two) for one in first.types for two in second.types]
        types, plain = tuple(dict.fromkeys(filter(None, narrowed))), self.plain and other.plain
        values = self.values if other.values is None else other.values
        if values is None:
            return Declared(types, plain=plain)
        known = None if None in (self.values, other.values) else {same_value(value) for value in self.values or ()}
        return Declared.of_values(
            value
            for value in values
            if any(_narrower(type_of(value), kind) for kind in types) and (known is None or same_value(value) in known)
        )

    def either(self, other: Declared) -> Declared:
        """What one of them says."""
        types = tuple(dict.fromkeys((*self.types, *other.types)))
        own, more = self._listed, other._listed
        values = None if own is None or more is None else tuple(_distinct((*own, *more)))
        return Declared(types, values, plain=self.plain and other.plain)

    def of_types(self, wanted: Iterable[str]) -> Declared:
        """The part that is of these types; all of it if none is."""
        part = self.both(Declared(tuple(wanted)))
        return part if part.types else self

    def parted(self) -> tuple[Declared, Declared]:
        """The texts, and all else."""
        return self.both(Declared(("string",))), self.both(Declared(NOT_STRINGS))

    @property
    def _listed(self) -> tuple[Any, ...] | None:
        return (None,) if self.values is None and self.types == ("null",) else self.values

    def value(self, text: str) -> Any:
        """The value that a text without quotes stands for."""
        if self.values is not None:
            if text in self.values:
                return text
            read = typed(text, tuple(kind for kind in self.types if kind != "string") or NOT_STRINGS)
            if same_value(read) in {same_value(value) for value in self.values}:
                return read
        return typed(text, self.types)


ANY = Declared()
_NOTHING = Declared(types=(), values=())


def _narrower(first: str, second: str) -> str:
    """The type that is meant by both; "" if there is none."""
    if first == second:
        return first
    return "integer" if {first, second} == {"integer", "number"} else ""


def _distinct(values: Iterable[Any]) -> Iterator[Any]:
    yield from {same_value(value): value for value in values}.values()


@dataclass(frozen=True)
class Parameters:
    """schema: of all arguments of a tool; None if it says nothing."""

    schema: Any = None
    _references: dict[str, Declared] = field(default_factory=dict, compare=False, repr=False)
    _declared: dict[str, Declared] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def members(self) -> _Members:
        return self._members(self.schema, ())

    @property
    def schemas(self) -> Mapping[str, Any]:
        """The schema of each parameter, by name."""
        return self.members.schemas

    def required(self, name: str) -> bool:
        return name in self.members.required

    def declared(self, name: str) -> Declared:
        """What is said of a parameter; one that has no schema may be anything."""
        if name not in self._declared:
            self._declared[name] = self._follow(self.schemas.get(name, self.members.others), 0)
        return self._declared[name]

    def standalone(self, schema: Any, types: Iterable[str] | None = None) -> Any:
        """The schema of a parameter with the definitions that it refers to, to stand by itself. types: those that are
        left of its own; None: all."""
        if types is not None:
            schema = {**(schema if isinstance(schema, dict) else {}), "type": list(types)}
        if not isinstance(schema, dict) or not isinstance(self.schema, dict):
            return schema
        own: dict[str, Any] = {key: self.schema[key] for key in DEFINITIONS if isinstance(self.schema.get(key), dict)}
        if _refers_elsewhere((schema, own)):
            moved = _moved(schema)
            return {**moved, "$defs": {**(moved.get("$defs") or {}), _ROOT: _moved(self.schema)}}
        for key, definitions in own.items():
            mine = schema.get(key)
            own[key] = {**mine, **definitions} if isinstance(mine, dict) else definitions
        return {**schema, **own}

    # ---- following a schema

    def _follow(self, schema: Any, depth: int) -> Declared:
        if schema is False:
            return _NOTHING
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return ANY
        found = replace(_direct(schema), plain=_ANNOTATIONS.issuperset(schema))
        if isinstance(schema.get("$ref"), str):
            found = found.both(self._referred(schema["$ref"], depth))
        for each in _list(schema, "allOf"):
            found = found.both(self._follow(each, depth + 1))
        for word in ("anyOf", "oneOf"):
            if choices := [self._follow(each, depth + 1) for each in _list(schema, word)]:
                union = choices[0]
                for each in choices[1:]:
                    union = union.either(each)
                found = found.both(union)
        if schema.get("nullable") is True and "null" not in found.types:
            found = found.either(Declared(("null",)))
        return found

    def _referred(self, reference: str, depth: int) -> Declared:
        """Each reference is followed once: one that leads back to itself says nothing by that."""
        if reference not in self._references:
            self._references[reference] = ANY
            target = _target(self.schema, reference)
            self._references[reference] = ANY if target is None else self._follow(target, depth + 1)
        return self._references[reference]

    def _members(self, schema: Any, above: tuple[str, ...]) -> _Members:
        """above: the references that have led here."""
        if not isinstance(schema, dict) or len(above) > MAX_DEPTH:
            return _Members()
        properties, required, others = (schema.get(key) for key in ("properties", "required", "additionalProperties"))
        found = _Members(
            properties if isinstance(properties, dict) else {},
            frozenset(name for name in required if isinstance(name, str))
            if isinstance(required, list)
            else frozenset(),
            others if isinstance(others, dict) else None,
        )
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in above:
            found = found.both(self._members(_target(self.schema, reference), (*above, reference)))
        below = (*above, "")
        for each in _list(schema, "allOf"):
            found = found.both(self._members(each, below))
        for word in ("anyOf", "oneOf"):
            if choices := [self._members(each, below) for each in _list(schema, word)]:
                union = choices[0]
                for each in choices[1:]:
                    union = union.either(each)
                found = found.both(union)
        return found


@dataclass(frozen=True)
class _Members:
    """The members of an object. others: the schema of those that have no name."""

    schemas: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    others: dict[str, Any] | None = None

    def both(self, other: _Members) -> _Members:
        return _Members(self._joined(other, "allOf"), self.required | other.required, self.others or other.others)

    def either(self, other: _Members) -> _Members:
        return _Members(self._joined(other, "anyOf"), self.required & other.required, self.others or other.others)

    def _joined(self, other: _Members, word: str) -> dict[str, Any]:
        twice = self.schemas.keys() & other.schemas.keys()
        joined = {
            name: {word: [self.schemas[name], other.schemas[name]]}
            for name in twice
            if self.schemas[name] != other.schemas[name]
        }
        return {**other.schemas, **self.schemas, **joined}


def _direct(schema: Mapping[str, Any]) -> Declared:
    """What a schema says by its own types and values."""
    kind = schema.get("type")
    kinds = tuple(dict.fromkeys(each for each in (kind if isinstance(kind, list) else [kind]) if each in JSON_TYPES))
    found = Declared(kinds) if kinds else ANY
    if "const" in schema:
        return found.both(Declared.of_values((schema["const"],)))
    values = schema.get("enum")
    return found.both(Declared.of_values(values)) if isinstance(values, list) else found


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _target(root: Any, reference: str) -> Any:
    """What a reference within a schema leads to; None if it leads nowhere."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _refers_elsewhere(value: Any) -> bool:
    """Whether a reference leads to a place of the whole schema that is no definition."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            reference = found.get("$ref")
            if isinstance(reference, str) and reference.startswith("#") and not reference.startswith(_DEFINITION):
                return True
            waiting += found.values()
        elif isinstance(found, list | tuple):
            waiting += found
    return False


def _moved(value: Any, depth: int = 0) -> Any:
    """A copy whose references lead to the whole schema where standalone() puts it. What is nested too deeply stays as
    it is: no grammar takes it."""
    if depth > 2 * MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_moved(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(each, depth + 1) for key, each in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return moved
