"""The response_template itself: read and checked once, at the start.

Checkpoints are not trusted: what a template may hold is limited in size, and how long its patterns may run is limited
where they are used (budget.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex  # type: ignore[import-untyped]  # it has no stubs of its own

from tessera.errors import ModelError

MAX_BYTES = 2**16
"""The longest response_template, as JSON."""
_MAX_FIELDS = 32
_MAX_PATTERN_SIZE = 2**14
"""The length of a pattern, times what it repeats by number: the library writes such repetitions out."""
_MAX_DIGITS = 6
"""Of a number in a pattern: with as many it is too large already."""
_MAX_PLACEHOLDERS = 64
_MAX_DEPTH = 16

_TOP_KEYS = frozenset(("version", "defaults", "fields", "start_anchor", "start_anchor_pattern"))
_FIELD_KEYS = frozenset(
    ("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional",
     "transform", "transform_each")
)  # fmt: skip
PARSERS = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")

_REASONING = ("thinking", "reasoning", "reasoning_content")
_CALLS = "tool_calls"


@dataclass(frozen=True)
class Delimiter:
    """What begins or ends a region. literals: the texts it may be; () for a pattern. extends: whether one of them is
    the beginning of another. name: to say in messages."""

    pattern: Any
    literals: tuple[str, ...]
    name: str

    @cached_property
    def extends(self) -> bool:
        return any(a != b and a.startswith(b) for a in self.literals for b in self.literals)

    @cached_property
    def firsts(self) -> str | None:
        """The characters that it may begin with; None if that is not known."""
        if self.literals:
            return "".join(sorted({literal[0] for literal in self.literals}))
        return _first_of(self.pattern.pattern)

    def may_grow(self, match: Any, end: int) -> bool:
        """Whether a match might be another one if more text followed. end: of the text."""
        if match.partial:
            return True
        return match.end() == end and (match.start() == end or not self.literals or self.extends)


@dataclass(frozen=True)
class Field:
    """A region of the answer."""

    name: str
    # None if nothing begins it.
    opens: Delimiter | None
    # None if it lasts to the end of the answer.
    closes: Delimiter | None
    # The parser of its text, and the parser's options.
    content: str
    args: Mapping[str, Any]
    # What stands between the texts of a region that repeats.
    join: str
    # The form of its value; None: as parsed.
    transform: Any
    # Whether the transform is for each element of a list.
    each: bool

    @property
    def literals(self) -> tuple[str, str]:
        """The texts that begin and end it; "" where nothing does, or only a pattern says."""
        begin, end = (one.literals[-1] if one is not None and one.literals else "" for one in (self.opens, self.closes))
        return begin, end

    @property
    def is_reasoning(self) -> bool:
        return self.name in _REASONING

    @property
    def is_calls(self) -> bool:
        return self.name == _CALLS

    @property
    def stripped(self) -> bool:
        """Whether white space around its text is dropped."""
        return self.content != "text" or bool(self.args.get("strip", True))


@dataclass(frozen=True)
class Template:
    """anchor: the pattern after whose last match in a prompt the answer begins."""

    fields: tuple[Field, ...]
    anchor: str
    strings: tuple[str, ...]
    """All texts within the fields, in which special tokens may be named."""

    @property
    def implicit(self) -> Field | None:
        """The region of what is in no other one; None if such text is dropped."""
        return next((field for field in self.fields if field.opens is None), None)

    @property
    def reasoning(self) -> Field | None:
        return next((field for field in self.fields if field.is_reasoning), None)

    @property
    def calls(self) -> Field | None:
        return next((field for field in self.fields if field.is_calls), None)

    @property
    def answer(self) -> Field | None:
        return next((field for field in self.fields if field.name == "content"), None)

    def special(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """The special tokens, of those given by their texts, that reading an answer needs."""
        said = "\0".join((*self.strings, *(text.replace("\\", "") for text in self.strings)))
        return tuple(token for token in tokens if token and token in said)


def load(source: str) -> Template:
    """source: JSON. Raises ModelError, which says what is wrong."""
    if len(source) > MAX_BYTES:
        raise ModelError(f"it has more than {MAX_BYTES} bytes")
    spec = json.loads(source)
    if not isinstance(spec, dict):
        raise ModelError("it must be an object")
    if spec.get("version", 1) != 1:
        raise ModelError("its version is not 1")
    _check_keys(spec, _TOP_KEYS, "it")
    if not isinstance(spec.get("defaults", {}), dict):
        raise ModelError("defaults must be an object")
    given = spec.get("fields")
    if not isinstance(given, dict) or not 0 < len(given) <= _MAX_FIELDS:
        raise ModelError(f"fields must be an object of 1 to {_MAX_FIELDS} regions")
    fields = tuple(_field(name, found) for name, found in given.items())
    if sum(field.opens is None for field in fields) > 1:
        raise ModelError("more than one field has neither open nor open_pattern")
    anchor = _delimiter("", spec, "start_anchor")
    if anchor is None:
        raise ModelError("start_anchor or start_anchor_pattern is missing")
    return Template(fields, anchor.pattern.pattern, tuple(_strings(given)))


def _field(name: str, spec: Any) -> Field:
    if not isinstance(spec, dict):
        raise ModelError(f"fields.{name} must be an object")
    _check_keys(spec, _FIELD_KEYS, f"fields.{name}")
    place = f"fields.{name}."
    content, args = spec.get("content", "text"), spec.get("content_args", {})
    _check_parser(content, args, f"{place}content")
    join = spec.get("join")
    if join is not None and (not isinstance(join, str) or not spec.get("repeats")):
        raise ModelError(f"{place}join must be a text, and needs repeats")
    opens, closes = _delimiter(place, spec, "open"), _delimiter(place, spec, "close")
    transform, each = spec.get("transform"), spec.get("transform_each", False)
    if not isinstance(each, bool) or (each and transform is None):
        raise ModelError(f"{place}transform_each must be true or false, and needs transform")
    captured = any(one is not None and one.pattern.groupindex for one in (opens, closes))
    if captured and transform is None:
        raise ModelError(f"{place}transform is missing: nothing else takes what the patterns' groups captured")
    _check_transform(transform, f"{place}transform")
    return Field(name, opens, closes, content, args, join or "", transform, each)


def _delimiter(place: str, spec: Mapping[str, Any], key: str) -> Delimiter | None:
    if key in spec and f"{key}_pattern" in spec:
        raise ModelError(f"{place}{key} and {place}{key}_pattern cannot both be there")
    if key in spec:
        texts = spec[key] if isinstance(spec[key], list) else [spec[key]]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ModelError(f"{place}{key} must be a text, or a list of texts, and none may be empty")
        longest_first = sorted(dict.fromkeys(texts), key=len, reverse=True)
        pattern = regex.compile("|".join(map(regex.escape, longest_first)), regex.DOTALL)
        return Delimiter(pattern, tuple(longest_first), f"{place}{key}")
    if f"{key}_pattern" in spec:
        name = f"{place}{key}_pattern"
        return Delimiter(compiled(spec[f"{key}_pattern"], name), (), name)
    return None


def compiled(source: Any, place: str) -> Any:
    """A pattern of the `regex` library, in which . matches line breaks too. Raises ModelError."""
    if not isinstance(source, str):
        raise ModelError(f"{place} must be a text")
    size = len(source)
    for counts in re.findall(r"\{(\d*),?(\d*)\}", source):
        size *= max(int(count[:_MAX_DIGITS] or 1) for count in counts) or 1
    if size > _MAX_PATTERN_SIZE:
        raise ModelError(f"{place} is too large")
    try:
        return regex.compile(source, regex.DOTALL)
    except Exception as error:  # the library raises more than its own errors
        raise ModelError(f"{place} is no pattern: {error}") from error


def _check_parser(name: Any, args: Any, place: str, depth: int = 0) -> None:
    if name not in PARSERS:
        raise ModelError(f"{place} must be one of {', '.join(PARSERS)}")
    if not isinstance(args, dict) or depth > _MAX_DEPTH:
        raise ModelError(f"{place}_args must be an object")
    if name == "xml-inline":
        tag = compiled(args.get("tag_pattern"), f"{place}_args.tag_pattern")
        if "key" not in tag.groupindex:
            raise ModelError(f"{place}_args.tag_pattern must have a group named key")
    if name == "json":
        delimiters = args.get("string_delims", [])
        if not isinstance(delimiters, list) or not all(map(_is_pair, delimiters)):
            raise ModelError(f"{place}_args.string_delims must be a list of pairs of texts")
    for key in ("line_sep", "kv_sep") if name == "kv-lines" else ():
        if not isinstance(args.get(key, ":"), str) or not args.get(key, ":"):
            raise ModelError(f"{place}_args.{key} must be a text")
    inner = args.get("value_parser") if name in ("xml-inline", "kv-lines") else None
    if inner is not None:
        if not isinstance(inner, dict):
            raise ModelError(f"{place}_args.value_parser must be an object")
        _check_parser(inner.get("name", "text"), inner.get("args", {}), f"{place}_args.value_parser", depth + 1)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) and text for text in value)


def _check_transform(transform: Any, place: str) -> None:
    texts = list(_strings(transform))
    placeholders = [text for text in texts if PLACEHOLDER.search(text)]
    if len(placeholders) > _MAX_PLACEHOLDERS or not all(map(PLACEHOLDER.fullmatch, placeholders)):
        raise ModelError(
            f"{place} may have {_MAX_PLACEHOLDERS} placeholders such as {{content}}, each a text by itself"
        )


def _check_keys(spec: Mapping[str, Any], keys: frozenset[str], place: str) -> None:
    if unknown := sorted(set(spec) - keys):
        raise ModelError(f"{place} has the unknown key {unknown[0]}")


def _strings(value: Any) -> Sequence[str]:
    """All texts in a value but the keys of objects."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _strings(one)]


_FIRST = re.compile(r"(?:\\(?P<escaped>\W)|(?P<plain>[^\\^$.|?*+()\[\]{}]))(?![?*{])")
_INSIDE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", re.DOTALL)
_FLAGS = re.compile(r"\(\?[a-zA-Z0-9]*[ix]")


def _first_of(source: str) -> str | None:
    """The character that all matches of a pattern begin with; None if there is none, or if it is not plain to see."""
    found = _FIRST.match(source)
    if found is None or _FLAGS.search(source):
        return None
    depth = 0
    for character in _INSIDE.sub("", source):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return None
    return found[found.lastgroup or 0]
