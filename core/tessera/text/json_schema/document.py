"""A JSON Schema as a document: its subschemas, each with its place, and where its references lead.

References are resolved as the specification says (JSON Schema draft 4 to 2020-12): by JSON pointer to anywhere in the
document, by $anchor, and by the $id of what it embeds. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

MAX_DEPTH = 64
MAX_SUBSCHEMAS = 10_000

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("additionalProperties", "additionalItems", "items", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_DATA = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose values hold no schemas."""
_DRAFT = re.compile(r"draft-0?(\d)|draft/(\d{4})-\d\d")

Place = tuple[Any, ...]


class SchemaError(Exception):
    """A schema that cannot be enforced. place: where, as `.properties.name`; "" is the whole schema."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def format_place(place: Place) -> str:
    """As `.properties.name`, `.anyOf[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{str(part)[:64]}" for part in place)


class Subschema:
    """A schema within a document. base: the URI that its references are relative to. derived: it stands nowhere in the
    document but follows from what does, for which `place` is."""

    __slots__ = ("_document", "base", "derived", "place", "schema")

    def __init__(self, document: Document, schema: Any, base: str, place: Place, *, derived: bool = False) -> None:
        self._document = document
        self.schema = schema
        self.base = base
        self.place = place
        self.derived = derived

    def get(self, keyword: str, default: Any = None) -> Any:
        return self.schema.get(keyword, default)

    def __contains__(self, keyword: str) -> bool:
        return keyword in self.schema

    def child(self, *path: Any) -> Subschema:
        """The schema at a path of keys and indices below this one."""
        value = self.schema
        for part in path:
            value = value[part]
        if isinstance(value, Subschema):
            return value
        return self._document.subschema(value, _base(value, self.base), (*self.place, *path), derived=self.derived)

    def derive(self, schema: Any) -> Subschema:
        """A schema that follows from this one. It may hold Subschemas as they are."""
        return Subschema(self._document, schema, self.base, self.place, derived=True)

    def select(self, keywords: frozenset[str]) -> Subschema:
        """What it says by these keywords."""
        schema = {key: value for key, value in self.schema.items() if key in keywords}
        return Subschema(self._document, schema, self.base, self.place, derived=self.derived)

    def error(self, reason: str, *path: Any) -> SchemaError:
        return SchemaError(format_place((*self.place, *path)), reason)


def _base(value: Any, base: str) -> str:
    own = value.get("$id") if isinstance(value, dict) else None
    return urljoin(base, own) if isinstance(own, str) and not own.startswith("#") else base


class Document:
    """draft: the year of the specification, or 4, 6 or 7."""

    def __init__(self, schema: Any) -> None:
        """Raises SchemaError for one that is nested too deeply or has too many subschemas."""
        for _ in subschemas(schema):
            pass
        self.schema = schema
        self.draft = _draft(schema)
        self._resources: dict[str, tuple[Any, Place]] = {"": (schema, ())}
        self._anchors: dict[tuple[str, str], tuple[Any, Place]] = {}
        self._subschemas: dict[Any, Subschema] = {}
        self._index(schema, "", ())
        base = next((uri for uri, (found, _) in self._resources.items() if uri and found is schema), "")
        self.root = self.subschema(schema, base, ())

    @property
    def references_stand_alone(self) -> bool:
        """Whether what stands beside a $ref is ignored: up to draft 7, where a schema names its draft."""
        return self.draft <= 7

    def follow(self, subschema: Subschema) -> Subschema:
        """What a $ref leads to. Raises SchemaError."""
        keyword = next(name for name in REFERENCES if name in subschema)
        reference = subschema.get(keyword)
        if not isinstance(reference, str):
            raise subschema.error("must be a string", keyword)
        uri, fragment = urldefrag(urljoin(subschema.base, reference))
        if reference.startswith("#"):
            uri, fragment = urldefrag(subschema.base)[0], reference[1:]
        resource = self._resources.get(uri) or self._resources.get(uri.rstrip("/"))
        if resource is None:
            raise subschema.error("it leads to another document, and none is loaded", keyword)
        found = self._resolve(resource, uri, unquote(fragment))
        if found is None and uri:  # as many write it: relative to the whole document, within a part that has an $id
            found = self._resolve(self._resources[""], self.root.base, unquote(fragment))
        if found is None:
            raise subschema.error("it leads to nothing", keyword)
        return found

    def is_circle(self, subschema: Subschema) -> bool:
        """Whether a reference leads to nothing but itself, by way of others or at once."""
        seen = [subschema]
        while isinstance(seen[-1].schema, dict) and any(name in seen[-1] for name in REFERENCES):
            following = self.follow(seen[-1])
            if following in seen:
                return following is subschema
            seen.append(following)
        return False

    def _resolve(self, resource: tuple[Any, Place], base: str, fragment: str) -> Subschema | None:
        value, place = resource
        if fragment and not fragment.startswith("/"):
            anchored = self._anchors.get((base, fragment))
            return None if anchored is None else self.subschema(anchored[0], base, anchored[1])
        for part in fragment.split("/")[1:]:
            key: Any = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                key = int(key) if key.isdecimal() and len(key) < 9 else -1
                if not 0 <= key < len(value):
                    return None
            elif not isinstance(value, dict) or key not in value:
                return None
            value, place = value[key], (*place, key)
            base = _base(value, base)
        return self.subschema(value, base, place)

    def subschema(self, value: Any, base: str, place: Place, *, derived: bool = False) -> Subschema:
        """The one Subschema for a value of the document."""
        key = (id(value) if isinstance(value, dict) else value, base) if isinstance(value, dict | bool) else None
        found = self._subschemas.get(key)
        if found is None:
            found = Subschema(self, value, base, place, derived=derived)
            if key is not None:
                self._subschemas[key] = found
        return found

    def _index(self, value: Any, base: str, place: Place) -> None:
        """Notes the resources and anchors of a value, wherever they are."""
        waiting = [(value, base, place)]
        while waiting:
            value, base, place = waiting.pop()
            if isinstance(value, list):
                waiting += [(each, base, (*place, index)) for index, each in enumerate(value)]
            if not isinstance(value, dict):
                continue
            own = value.get("$id", value.get("id") if self.draft == 4 else None)
            if isinstance(own, str) and own.startswith("#"):
                self._anchors.setdefault((base, own[1:]), (value, place))
            elif isinstance(own, str):
                base = urldefrag(urljoin(base, own))[0]
                self._resources.setdefault(base, (value, place))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(keyword), str):
                    self._anchors.setdefault((base, value[keyword]), (value, place))
            waiting += [(each, base, (*place, key)) for key, each in value.items() if key not in _DATA]


REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _draft(schema: Any) -> int:
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    match = _DRAFT.search(declared) if isinstance(declared, str) else None
    return int(match[1] or match[2]) if match else 2020


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
            waiting += reversed(list(_below(place, found)))


def _below(place: Place, schema: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            yield from (((*place, key, name), each) for name, each in value.items())
        elif key in _OF_LISTS and isinstance(value, list):
            yield from (((*place, key, index), each) for index, each in enumerate(value))
        elif key in _SINGLE:
            yield (*place, key), value
