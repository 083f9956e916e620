"""Schemas that lead an answer to where nothing can follow, which llguidance does not see: a schema that demands itself
without end, and names of properties that are all taken.

A schema that no finite value is valid by becomes `false`, which llguidance leaves out wherever it may be left out: an
optional property is then never written. Patterns of properties all of whose names are those of named properties become
part of these. A `$ref` that leads to itself says nothing at all and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tessera.text.json_schema import Place, SchemaError, shown, subschemas

Judge = Callable[[Any], bool]

_ENDLESS = "no value is valid by it: it demands itself, without end"
_CIRCLE = "it leads to itself"
_SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))
_KINDS = (*_SCALARS, "array", "object")
_SUBSETS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_CHOICES = ("anyOf", "oneOf")


def without_dead_ends(schema: dict[str, Any], has_no_property: Judge) -> dict[str, Any]:
    """Changes a schema, so that no answer comes to a dead end by it. has_no_property: whether no object that is valid
    by a schema has any property. Raises SchemaError for a schema that no finite value is valid by."""
    every = list(subschemas(schema))
    for _, found in every:
        if isinstance(found, dict) and "patternProperties" in found and "properties" in found:
            _merge_taken(found, has_no_property)
    if any(isinstance(found, dict) and "$ref" in found for _, found in every):
        _Finite(schema, every).prune()
    return schema


def _merge_taken(schema: dict[str, Any], has_no_property: Judge) -> None:
    """Moves patterns that match no other name than those of named properties to these."""
    named, patterns = schema["properties"], schema["patternProperties"]
    if not isinstance(named, dict) or not isinstance(patterns, dict):
        return
    for pattern in list(patterns):
        taken = [name for name in named if _matches(pattern, name)]
        left = {"properties": dict.fromkeys(taken, False), "patternProperties": {pattern: True}}
        if taken and has_no_property({"type": "object", **left, "additionalProperties": False}):
            own = patterns.pop(pattern)
            for name in taken:
                named[name] = {"allOf": [named[name], own]}


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # llguidance's syntax is another one, and says what is wrong
        return False


class _Finite:
    """Which schemas within a schema have a finite value. Of what is not known, they are taken to have one."""

    def __init__(self, root: dict[str, Any], every: list[tuple[Place, Any]]) -> None:
        self._root = root
        self._every = [(place, found) for place, found in every if isinstance(found, dict)]
        self._finite: set[int] = set()
        seen = {id(found) for _, found in self._every}
        for _, found in self._every:  # which grows: a $ref may lead to where no schema is looked for
            target = self._target(found)
            if isinstance(target, dict) and id(target) not in seen:
                more = [(place, each) for place, each in subschemas(target) if isinstance(each, dict)]
                self._every += [(place, each) for place, each in more if id(each) not in seen]
                seen.update(id(each) for _, each in more)

    def prune(self) -> None:
        """Raises SchemaError."""
        for place, found in self._every:
            if self._is_circle(found):
                raise SchemaError(shown((*place, "$ref")), _CIRCLE)
        grown = True
        while grown:
            grown = False
            for _, found in reversed(self._every):
                if id(found) not in self._finite and self._may_end(found):
                    self._finite.add(id(found))
                    grown = True
        if not self._has_value(self._root):
            raise SchemaError("", _ENDLESS)
        for _, found in self._every:
            self._replace(found)

    def _is_circle(self, schema: dict[str, Any]) -> bool:
        seen = [schema]
        while isinstance(following := self._target(seen[-1]), dict):
            if any(following is each for each in seen):
                return following is schema
            seen.append(following)
        return False

    def _target(self, schema: dict[str, Any]) -> Any:
        """What a $ref leads to within the document; None if there is none, or it leads elsewhere."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        found: Any = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    def _has_value(self, schema: Any) -> bool:
        """Whether a schema is known to have a finite value."""
        return id(schema) in self._finite if isinstance(schema, dict) else schema is not False

    def _may_end(self, schema: dict[str, Any]) -> bool:
        target = self._target(schema)
        if target is not None and not self._has_value(target):
            return False
        if not all(self._has_value(each) for each in _list(schema, "allOf")):
            return False
        for choice in _CHOICES:
            if (options := _list(schema, choice)) and not any(self._has_value(each) for each in options):
                return False
        if "enum" in schema or "const" in schema:
            return True
        kind = schema.get("type", _KINDS)
        kinds = (kind,) if isinstance(kind, str) else kind
        if not isinstance(kinds, list | tuple) or not _SCALARS.isdisjoint(map(str, kinds)):
            return True
        return ("object" in kinds and self._may_be_object(schema)) or ("array" in kinds and self._may_be_array(schema))

    def _may_be_object(self, schema: dict[str, Any]) -> bool:
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        return all(self._has_value(each) for name in names for each in _of_name(schema, name))

    def _may_be_array(self, schema: dict[str, Any]) -> bool:
        least = schema.get("minItems", 0)
        count = int(least) if isinstance(least, int | float) else 0
        if least and "contains" in schema and not self._has_value(schema["contains"]):
            return False
        first = _list(schema, "prefixItems") or _list(schema, "items")
        rest = (
            schema.get("additionalItems", True) if isinstance(schema.get("items"), list) else schema.get("items", True)
        )
        return all(map(self._has_value, first[:count])) and (count <= len(first) or self._has_value(rest))

    def _replace(self, schema: dict[str, Any]) -> None:
        """Makes those of its own schemas `false` that have no finite value."""
        for key, value in schema.items():
            if key in _SUBSETS and isinstance(value, dict):
                schema[key] = {name: self._kept(each) for name, each in value.items()}
            elif isinstance(value, list) and key in ("allOf", "prefixItems", "items", *_CHOICES):
                schema[key] = [self._kept(each) for each in value]
            elif key in ("items", "additionalItems", "additionalProperties", "contains"):
                schema[key] = self._kept(value)

    def _kept(self, schema: Any) -> Any:
        return schema if not isinstance(schema, dict) or id(schema) in self._finite else False


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _of_name(schema: dict[str, Any], name: Any) -> Iterator[Any]:
    """The schemas of a property."""
    named, patterns = schema.get("properties"), schema.get("patternProperties")
    known = False
    if isinstance(named, dict) and name in named:
        known = True
        yield named[name]
    if isinstance(patterns, dict):
        for pattern, each in patterns.items():
            if isinstance(name, str) and _matches(pattern, name):
                known = True
                yield each
    if not known:
        yield schema.get("additionalProperties", True)
