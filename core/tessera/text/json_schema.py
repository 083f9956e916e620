"""JSON Schemas (draft 2020-12) as llguidance takes them, and what to tell a client whose schema cannot be enforced.

llguidance enforces each keyword or refuses the schema. What it reads otherwise than a validator is settled here:
formats that it does not know are annotations, as the specification says, and so is a client's "x-guidance"; what would
let an invalid text through is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 10_000
MAX_REASON_CHARS = 300

WHITESPACE = r"(\n[ \t]{0,64}|[ ]{1,2}|\t)"
"""Between the parts of JSON, at most once at each place: bounded, so that no model fills its answer with it."""

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # fmt: skip
"""The formats that are enforced."""

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("additionalProperties", "additionalItems", "items", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_UNENFORCED = re.compile(r"Unimplemented keys: \[(?P<names>[^\]]*)\]")
_REFERENCE = re.compile(r"Anchor '(?P<anchor>.*)' does not exist|Resource '(?P<resource>.*)' is not present")
_EITHER = "oneOf constraints are not supported"
_PREFIX = re.compile(r"^(?:at \d+\(\d+\): )?failed to compile JSON schema: |^failed to parse \"%json\": ")


class SchemaError(Exception):
    """A schema that cannot be enforced. place: where, as `.properties.name`; "" is the whole schema."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


Place = tuple[Any, ...]


def enforceable(schema: Any, whitespace: str | None, *, closed: bool = False, lenient: bool = False) -> Any:
    """A copy of a schema, for llguidance. whitespace: a regular expression; None is none at all. closed: objects have
    no properties but those named, where the schema does not say. lenient: what llguidance does not enforce is left out,
    and oneOf is anyOf. Raises SchemaError."""
    copied = _copied(schema)
    for place, found in subschemas(copied):
        if not isinstance(found, dict):
            continue
        if found.get("format") not in FORMATS:
            found.pop("format", None)
        if closed and "properties" in found:
            found.setdefault("additionalProperties", False)
        if not lenient:
            _check(found, place)
    if not isinstance(copied, dict):
        copied = {} if copied is True else {"enum": []}
    options: dict[str, Any] = {"whitespace_flexible": False}
    if whitespace is not None:
        options = {"whitespace_pattern": whitespace}
    if lenient:
        options["lenient"] = True
    return {**copied, "x-guidance": options}


def _check(schema: dict[str, Any], place: Place) -> None:
    """Raises SchemaError for what llguidance would let through."""
    least = schema.get("minProperties")
    if isinstance(least, int | float) and least > 1 and len(schema.get("required", ())) < least:
        raise SchemaError(
            shown((*place, "minProperties")),
            "a minimum above 1 is not supported, unless as many properties are required",
        )
    if "$ref" in schema and "$id" in schema and not schema.get("$schema", ""):
        raise SchemaError(shown((*place, "$ref")), "a $ref beside an $id is not supported")


def subschemas(schema: Any) -> Iterator[tuple[Place, Any]]:
    """Each schema within a schema with its place, itself first. Raises SchemaError for one that is nested too deeply or
    has too many."""
    waiting: list[tuple[Place, Any]] = [((), schema)]
    count = 0
    while waiting:
        place, found = waiting.pop()
        count += 1
        if len(place) > 2 * MAX_DEPTH:
            raise SchemaError("", f"it is nested more than {MAX_DEPTH} levels deep")
        if count > MAX_SUBSCHEMAS:
            raise SchemaError("", f"it has more than {MAX_SUBSCHEMAS} schemas within it")
        yield place, found
        if isinstance(found, dict):
            waiting += reversed(list(_within(place, found)))


def _within(place: Place, schema: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            yield from (((*place, key, name), each) for name, each in value.items())
        elif key in _OF_LISTS and isinstance(value, list):
            yield from (((*place, key, index), each) for index, each in enumerate(value))
        elif key in _SINGLE:
            yield (*place, key), value


def _copied(value: Any) -> Any:
    """Lists and mappings as new lists and dicts. Raises SchemaError."""
    try:
        if isinstance(value, Mapping):
            return {key: _copied(each) for key, each in value.items()}
        return [_copied(each) for each in value] if isinstance(value, list) else value
    except RecursionError:
        raise SchemaError("", f"it is nested more than {MAX_DEPTH} levels deep") from None


def shown(place: Place) -> str:
    """As `.properties.name`, `.anyOf[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{str(part)[:64]}" for part in place)


def explained(schema: Any, said: str, refuses: Callable[[Any], bool]) -> SchemaError:
    """What llguidance says of a schema, in the client's terms. refuses: whether llguidance refuses a schema, which
    tells apart several that may be meant."""
    reason = _PREFIX.sub("", said.partition("\n")[0])
    if match := _UNENFORCED.search(reason):
        names = re.findall(r'"([^"]+)"', match["names"])
        place = next((place for place, found in subschemas(schema) if _has(found, names)), ())
        return SchemaError(shown(place), f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not supported")
    if reason.startswith(_EITHER):
        places = [(place, found) for place, found in subschemas(schema) if isinstance(found, dict) and "oneOf" in found]
        meant = next((place for place, found in places if refuses({"oneOf": found["oneOf"], **_named(schema)})), ())
        return SchemaError(shown((*meant, "oneOf")), "its schemas must exclude one another; use anyOf")
    if match := _REFERENCE.search(reason):
        name = match["anchor"] or match["resource"]
        places = [place for place, found in subschemas(schema) if _has(found, ["$ref"]) and name in str(found["$ref"])]
        what = "leads to another document, and none is loaded" if match["resource"] else "leads to nothing"
        return SchemaError(shown((*places[0], "$ref") if places else ()), f"it {what}")
    if "recursion limit exceeded" in reason:
        return SchemaError("", f"it is nested more than {MAX_DEPTH} levels deep")
    if "too big" in reason or "fuel" in reason or "TooComplex" in reason:
        return SchemaError("", "it is too large or too complex")
    if "regex parse error" in reason:
        return SchemaError(_pattern(schema, refuses), "the regular expression is wrong, or looks around")
    return SchemaError("", f"{reason[:1].lower()}{reason[1:MAX_REASON_CHARS]}".rstrip("."))


def _pattern(schema: Any, refuses: Callable[[Any], bool]) -> str:
    """The place of the first wrong pattern."""
    for place, found in subschemas(schema):
        if isinstance(found, dict):
            if "pattern" in found and refuses({"type": "string", "pattern": found["pattern"]}):
                return shown((*place, "pattern"))
            for name in found.get("patternProperties") or ():
                if refuses({"type": "string", "pattern": name}):
                    return shown((*place, "patternProperties"))
    return ""


def _has(schema: Any, names: list[str]) -> bool:
    return isinstance(schema, dict) and all(name in schema for name in names)


def _named(schema: Any) -> dict[str, Any]:
    """The definitions that a schema within this one may refer to."""
    if not isinstance(schema, dict):
        return {}
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}
