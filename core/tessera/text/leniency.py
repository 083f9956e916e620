"""What is left of a JSON Schema if what cannot be enforced is left out, for tools that are not strict: their arguments
may be checked by the client, and no request ends for them.

Whatever compiles schemas says what is refused, so nothing here knows which keywords are. What is left allows all that
the schema allows, and more. Only schemas that are refused are looked into.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import compile_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Refuses = Callable[[Any], bool]

MAX_TRIES = 400
"""Schemas that are tried; after that, what has not been shown to be enforced is left out."""
MAX_DEPTH = 64
_DEFINITIONS = ("$defs", "definitions")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_NAMED = ("properties", "patternProperties", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalProperties", "items", "contains", "then", "else", "unevaluatedItems", "unevaluatedProperties")
_FIRST = (
    *("type", "enum", "const", "$ref", "properties", "patternProperties", "required", "prefixItems", "items", "anyOf"),
    *("oneOf", "allOf", "additionalProperties"),
)
"""The keywords that say most, which are kept first."""
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "additionalProperties": ("properties", "patternProperties"),
    "unevaluatedProperties": ("properties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"),
    "items": ("prefixItems",),
    "unevaluatedItems": ("prefixItems", "items", "allOf", "anyOf", "oneOf", "$ref", "if"),
    "maxContains": ("contains",),
    "else": ("if",),
    "then": ("if",),
}
"""Keywords that would forbid more if one of these were left out beside them."""


def settled(asked: StructuredOutputsParams, tokenizer: LLTokenizer) -> StructuredOutputsParams:
    """What is asked for, as it can be compiled: without what cannot be enforced of the schemas in a structural tag that
    are lenient. Raises RequestError."""
    try:
        compile_grammar(asked, tokenizer)
    except RequestError:
        if '"lenient"' not in (asked.structural_tag or ""):
            raise
    else:
        return asked

    def refuses(schema: Any) -> bool:
        form = {"type": "json_schema", "json_schema": schema, "lenient": True}
        try:
            compile_grammar(_with_tag(asked, {"format": form}), tokenizer)
        except RequestError:
            return True
        return False

    tag = json.loads(asked.structural_tag)
    try:
        left = _with_tag(asked, _mapped(tag, lambda schema: enforced(schema, refuses)))
        compile_grammar(left, tokenizer)
    except RequestError:  # each may be compiled by itself, and all together take too much
        left = _with_tag(asked, _mapped(tag, any_of_type))
        compile_grammar(left, tokenizer)
    return left


def enforced(schema: Any, refuses: Refuses) -> Any:
    """What is left of a schema. refuses: whether a schema cannot be enforced, by itself."""
    return _Remainder(schema, refuses).of(schema, 0) or any_of_type(schema)


def any_of_type(schema: Any) -> dict[str, Any]:
    """Any value of the types that a schema names."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each in _TYPES]
    return {"type": kinds} if kinds else {}


def _with_tag(asked: StructuredOutputsParams, tag: Any) -> StructuredOutputsParams:
    return msgspec.structs.replace(asked, structural_tag=json.dumps(tag))


def _mapped(form: Any, leave_out: Callable[[Any], Any]) -> Any:
    """A structural tag with what is left of its schemas that are lenient."""
    match form:
        case {"type": "json_schema", "lenient": True, "json_schema": schema}:
            return {**form, "json_schema": leave_out(schema)}
        case {"type": "json_schema"}:
            return form
        case dict():
            return {key: _mapped(value, leave_out) for key, value in form.items()}
        case list():
            return [_mapped(each, leave_out) for each in form]
    return form


class _Remainder:
    """of one schema; definitions are shared by its parts."""

    def __init__(self, schema: Any, refuses: Refuses) -> None:
        self._refuses = refuses
        self._tries = 0
        self._definitions: dict[str, dict[str, Any]] = {}
        if isinstance(schema, dict):
            self._definitions = {key: dict(schema[key]) for key in _DEFINITIONS if isinstance(schema.get(key), dict)}
        self._seen: set[tuple[str, str]] = set()

    def of(self, schema: Any, depth: int) -> Any:
        """A part without what is refused of it; what it refers to has been seen to before."""
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else {}
        if depth > MAX_DEPTH:
            return {}
        for reference in _references(schema):
            self._see_to(reference, depth)
        whole = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        if self._enforces(whole):
            return self._with_definitions(whole)
        inner = {key: self._within(key, value, depth + 1) for key, value in whole.items()}
        if self._enforces(inner):
            return self._with_definitions(inner)
        return self._with_definitions(self._kept(inner))

    def _kept(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """As many keywords as are enforced together."""
        kept: dict[str, Any] = {}
        rank = {key: place for place, key in enumerate(_FIRST)}
        for key in sorted(schema, key=lambda key: rank.get(key, len(rank))):
            needed = (other for other in _NEEDS.get(key, ()) if other in schema)
            if all(other in kept for other in needed) and self._enforces({**kept, key: schema[key]}):
                kept[key] = schema[key]
        return kept

    def _within(self, key: str, value: Any, depth: int) -> Any:
        if key in _NAMED and isinstance(value, dict):
            return {name: self._part(each, depth) for name, each in value.items()}
        if key in _LISTED and isinstance(value, list):
            return [self._part(each, depth) for each in value]
        return self._part(value, depth) if key in _SINGLE and isinstance(value, dict) else value

    def _part(self, schema: Any, depth: int) -> Any:
        left = self.of(schema, depth)
        return (
            {key: value for key, value in left.items() if key not in _DEFINITIONS} if isinstance(left, dict) else left
        )

    def _see_to(self, reference: str, depth: int) -> None:
        """Leaves out of a definition what is refused, once."""
        key, name = _definition(reference)
        own = self._definitions.get(key, {})
        if name in own and (key, name) not in self._seen:
            self._seen.add((key, name))
            own[name] = self._part(own[name], depth + 1)

    def _enforces(self, schema: dict[str, Any]) -> bool:
        self._tries += 1
        return self._tries <= MAX_TRIES and not self._refuses(self._with_definitions(schema))

    def _with_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A part with the definitions that it leads to."""
        used: dict[str, dict[str, Any]] = {}
        waiting = [schema]
        while waiting:
            for reference in _references(waiting.pop()):
                key, name = _definition(reference)
                if name in self._definitions.get(key, ()) and name not in used.setdefault(key, {}):
                    used[key][name] = self._definitions[key][name]
                    waiting.append(used[key][name])
        return {**schema, **used}


def _definition(reference: str) -> tuple[str, str]:
    """Where the definition that a reference leads to, or into, is: `$defs` and its name; "" for other places."""
    parts = reference.split("/", 3)
    if len(parts) < 3 or parts[0] != "#":
        return "", ""
    return parts[1], unquote(parts[2]).replace("~1", "/").replace("~0", "~")


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if isinstance(found.get("$ref"), str):
                yield found["$ref"]
            waiting += [value for key, value in found.items() if key not in _DEFINITIONS]
        elif isinstance(found, list):
            waiting += found
