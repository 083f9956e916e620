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
from tessera.text.grammar import Grammar, compile_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Judge = Callable[[Any], bool]

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


def compile_leniently(params: StructuredOutputsParams, tokenizer: LLTokenizer) -> Grammar:
    """What a request asks for, compiled: without what cannot be enforced of the schemas in a structural tag that are
    lenient, so its params may be others. Raises RequestError."""
    whole = Grammar(params, tokenizer)
    try:
        whole.compile()
    except RequestError:
        if '"lenient"' not in (params.structural_tag or ""):
            raise
    else:
        return whole

    def is_refused(schema: Any) -> bool:
        form = {"type": "json_schema", "json_schema": schema, "lenient": True}
        try:
            compile_grammar(_with_tag(params, {"format": form}), tokenizer)
        except RequestError:
            return True
        return False

    tag = json.loads(params.structural_tag)
    try:
        remainder = Grammar(
            _with_tag(params, _map_schemas(tag, lambda schema: remainder_of(schema, is_refused))), tokenizer
        )
        remainder.compile()
    except RequestError:  # each may be compiled by itself, and all together take too much
        remainder = Grammar(_with_tag(params, _map_schemas(tag, any_of_type)), tokenizer)
        remainder.compile()
    return remainder


def remainder_of(schema: Any, is_refused: Judge) -> Any:
    """What is left of a schema. is_refused: whether a schema cannot be enforced, by itself."""
    return _Remainder(schema, is_refused).reduce(schema, 0) or any_of_type(schema)


def any_of_type(schema: Any) -> dict[str, Any]:
    """Any value of the types that a schema names."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each in _TYPES]
    return {"type": kinds} if kinds else {}


def _with_tag(params: StructuredOutputsParams, tag: Any) -> StructuredOutputsParams:
    return msgspec.structs.replace(params, structural_tag=json.dumps(tag))


def _map_schemas(form: Any, replace: Callable[[Any], Any]) -> Any:
    """A structural tag with what is left of its schemas that are lenient."""
    match form:
        case {"type": "json_schema", "lenient": True, "json_schema": schema}:
            return {**form, "json_schema": replace(schema)}
        case {"type": "json_schema"}:
            return form
        case dict():
            return {key: _map_schemas(value, replace) for key, value in form.items()}
        case list():
            return [_map_schemas(each, replace) for each in form]
    return form


class _Remainder:
    """of one schema; definitions are shared by its parts."""

    def __init__(self, schema: Any, is_refused: Judge) -> None:
        self._is_refused = is_refused
        self._tries = 0
        self._definitions: dict[str, dict[str, Any]] = {}
        if isinstance(schema, dict):
            self._definitions = {key: dict(schema[key]) for key in _DEFINITIONS if isinstance(schema.get(key), dict)}
        self._seen: set[tuple[str, str]] = set()

    def reduce(self, schema: Any, depth: int) -> Any:
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
        return self._with_definitions(self._select_keywords(inner))

    def _select_keywords(self, schema: Mapping[str, Any]) -> dict[str, Any]:
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
        left = self.reduce(schema, depth)
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
        return self._tries <= MAX_TRIES and not self._is_refused(self._with_definitions(schema))

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
