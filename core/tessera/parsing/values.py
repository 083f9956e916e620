"""Reads the values of arguments from a text that arrives in pieces: JSON, and what some models write in its place."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Generator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from tessera.parsing.reader import Emit, Malformed, Reader, Wait

MAX_DEPTH = 64
QUOTES = ('"', "'")
"""What begins and ends a string of Python."""

_PLAIN = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r"[^\s,\]}\"\[{:;()<>]+")
_OUTSIDE = re.compile(r'[^"\[\]{}]+')
_NAME = re.compile(r"[\w.\-]+")


def json_value(reader: Reader, emit: Emit) -> Wait:
    """Passes a JSON value on as it is written. Raises Malformed for what cannot begin a value; what is wrong within one
    is passed on."""
    first = yield from reader.peek()
    if first == '"':
        yield from _string(reader, emit)
    elif first and first in "{[":
        yield from _nested(reader, emit)
    else:
        found: list[str] = []
        yield from reader.match(_SCALAR, found.append)
        if not found:
            raise Malformed
        emit("".join(found))


def _string(reader: Reader, emit: Emit) -> Wait:
    emit((yield from reader.take(1)))
    while True:
        yield from reader.match(_PLAIN, emit)
        if (yield from reader.peek()) == "\\":
            emit((yield from reader.take(2)))
        else:
            emit((yield from reader.take(1)))
            return


def _nested(reader: Reader, emit: Emit) -> Wait:
    depth = 0
    while True:
        character = yield from reader.peek()
        if character == '"':
            yield from _string(reader, emit)
            continue
        if character == "":
            raise Malformed
        if character in "{[":
            depth += 1
        elif character in "]}":
            depth -= 1
        else:
            yield from reader.match(_OUTSIDE, emit)
            continue
        emit((yield from reader.take(1)))
        if depth == 0:
            return


def json_string(reader: Reader) -> Generator[None, None, str]:
    """A JSON string, decoded. Raises Malformed."""
    parts: list[str] = []
    if (yield from reader.peek()) != '"':
        raise Malformed
    yield from _string(reader, parts.append)
    try:
        value = json.loads("".join(parts), strict=False)
    except ValueError:
        raise Malformed from None
    assert isinstance(value, str)
    return value


# ---- values as models write them that were not trained on JSON -------------------------------------------------------


def literal(
    reader: Reader, quotes: tuple[str, ...], names: Mapping[str, Any], depth: int = 0
) -> Generator[None, None, Any]:
    """A value: JSON, or Python's literals. quotes: what begins and ends a string; between " and ', backslashes escape.
    names: words that are values, such as True. Keys of objects may lack quotes. Raises Malformed."""
    if depth > MAX_DEPTH:
        raise Malformed
    yield from reader.space()
    for quote in quotes:
        if (yield from reader.literal(quote)):
            return (yield from _quoted(reader, quote))
    character = yield from reader.peek()
    if character == "{":
        return (yield from _object(reader, quotes, names, depth))
    if character and character in "[(":
        return (yield from _list(reader, quotes, names, depth))
    found: list[str] = []
    yield from reader.match(_SCALAR, found.append)
    return _scalar("".join(found), names)


def _quoted(reader: Reader, quote: str) -> Generator[None, None, str]:
    parts: list[str] = []
    while True:
        marker = yield from reader.until((quote, "\\") if len(quote) == 1 else (quote,), parts.append)
        if marker is None:
            raise Malformed
        if marker == quote:
            return "".join(parts)
        parts.append((yield from _escaped(reader)))


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


def _escaped(reader: Reader) -> Generator[None, None, str]:
    character = yield from reader.take(1)
    digits = {"x": 2, "u": 4, "U": 8}.get(character)
    if digits is None:
        return _ESCAPES.get(character, character)
    try:
        return chr(int((yield from reader.take(digits)), 16))
    except (ValueError, OverflowError):
        raise Malformed from None


def _object(
    reader: Reader, quotes: tuple[str, ...], names: Mapping[str, Any], depth: int
) -> Generator[None, None, dict[str, Any]]:
    yield from reader.expect("{")
    value: dict[str, Any] = {}
    while True:
        yield from reader.space()
        if (yield from reader.literal("}")):
            return value
        key = yield from _key(reader, quotes)
        yield from reader.space()
        yield from reader.expect(":")
        value[key] = yield from literal(reader, quotes, names, depth + 1)
        yield from reader.space()
        if not (yield from reader.literal(",")) and (yield from reader.peek()) != "}":
            raise Malformed


def _key(reader: Reader, quotes: tuple[str, ...]) -> Generator[None, None, str]:
    for quote in quotes:
        if (yield from reader.literal(quote)):
            return (yield from _quoted(reader, quote))
    return (yield from name(reader))


def name(reader: Reader) -> Generator[None, None, str]:
    """A name without quotes. Raises Malformed."""
    found: list[str] = []
    yield from reader.match(_NAME, found.append)
    if not found:
        raise Malformed
    return "".join(found)


def _list(
    reader: Reader, quotes: tuple[str, ...], names: Mapping[str, Any], depth: int
) -> Generator[None, None, list[Any]]:
    end = "]" if (yield from reader.take(1)) == "[" else ")"
    value: list[Any] = []
    while True:
        yield from reader.space()
        if (yield from reader.literal(end)):
            return value
        value.append((yield from literal(reader, quotes, names, depth + 1)))
        yield from reader.space()
        if not (yield from reader.literal(",")) and (yield from reader.peek()) != end:
            raise Malformed


def _scalar(text: str, names: Mapping[str, Any]) -> Any:
    if text in names:
        return names[text]
    try:
        return _decoded(text)
    except (ValueError, RecursionError):
        raise Malformed from None


def _decoded(text: str) -> Any:
    """A value of JSON. Raises ValueError, also for what JSON cannot say, such as NaN or 1e999; RecursionError."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def _no_number(_: str) -> Any:
    raise ValueError


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


# ---- values by the types of a schema ---------------------------------------------------------------------------------


JSON_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def type_of(value: Any) -> str:
    """The type of a value of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def same_value(value: Any) -> str:
    """A text that only the same value of JSON has."""
    return json.dumps(value, sort_keys=True)


_WORDS: Mapping[str, Any] = MappingProxyType({"true": True, "false": False, "null": None, "none": None})
_NESTED = {"[": "array", "{": "object", "(": "array"}
PYTHON: Mapping[str, Any] = MappingProxyType({"True": True, "False": False, "None": None, **_WORDS})
"""Words that are values, as Python and JSON write them."""


def typed(text: str, types: Collection[str]) -> Any:
    """The value that a text without quotes stands for. types: of the parameter; all of JSON's where nothing is known,
    and then a text is what it looks like. Where a string is among them it is one, unless it is null, a list or an
    object, and may be. A text that is of none of the types stays a text."""
    stripped = text.strip()
    word, said = stripped.lower(), len(set(types)) < len(JSON_TYPES)
    if said and "string" in types:
        if word in ("null", "none") and "null" in types:
            return None
        if _NESTED.get(stripped[:1]) not in types:
            return text
    elif word in _WORDS:
        return _WORDS[word]
    try:
        value = _decoded(stripped)
    except (ValueError, RecursionError):
        value = _of_python(stripped, text) if said and _NESTED.get(stripped[:1]) in types else text
    if said and "string" in types:
        return value if type_of(value) in types else text
    if isinstance(value, float) and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    return text if isinstance(value, str) else value


def _of_python(text: str, otherwise: str) -> Any:
    """The list or dict that a text is in Python's syntax; otherwise what it is."""
    reader = Reader()
    reader.feed(text)
    reader.ended = True
    found: list[Any] = []

    def whole() -> Wait:
        found.append((yield from literal(reader, QUOTES, PYTHON)))
        yield from reader.space()

    try:
        for _ in whole():
            raise AssertionError("the text is whole")
    except Malformed:
        return otherwise
    return otherwise if reader.place < len(text) else found[0]


# ---- values that have been read --------------------------------------------------------------------------------------

_HALVES = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """A text with an escape, as JSON has it, for each half of a pair of UTF-16: a model may write one alone, and UTF-8
    has none."""
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments as an object. Those that were cut short, or are none, are given as they are written."""
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}
