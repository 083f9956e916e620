"""Structural tags: texts in which tags are followed by what they demand, as a grammar for llguidance.

The format is xgrammar's (https://xgrammar.mlc.ai/docs/structural_tag, 2026), which vLLM and SGLang take too: an object
{"type": "structural_tag", "format": FORMAT}, or the older one with `structures` and `triggers`. A FORMAT is one of

    const_string         value
    json_schema          json_schema; strict: as in response_format; lenient: true leaves out what cannot be enforced
    regex                pattern; quoted: true is for a text as a JSON string writes it
    grammar              grammar: in Lark's or GBNF's syntax; quoted: as above
    any_text             as the content of a tag, or last in a sequence
    sequence, or         elements
    tag                  begin, content, end
    triggered_tags       triggers, tags, at_least_one, stop_after_first: free text, and tags from where a trigger is met
    tags_with_separator  tags, separator, at_least_one, stop_after_first: tags alone

A text that is one of the model's special tokens is that token: a model that was trained to say <|call|> says the token,
never its letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

MAX_DEPTH = 32
MAX_FORMATS = 10_000

_NOTHING = '""'


class TagError(Exception):
    """A structural tag that cannot be used. place: where, as `.format.tags[0]`."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Parts(Protocol):
    """Grammars that a tag names. Each method returns how Lark's syntax mentions what it is given, which has a place
    below the tag; it may raise RequestError. lenient: what cannot be enforced is left out."""

    def json_schema(self, schema: Any, place: str, *, strict: bool | None = None, lenient: bool = False) -> str: ...
    def regex(self, pattern: str, place: str, *, quoted: bool = False) -> str: ...
    def grammar(self, grammar: str, place: str, *, quoted: bool = False) -> str: ...


class Builder:
    """Collects the rules of one grammar. special: the id of each special token, by its text."""

    def __init__(self, parts: Parts, special: Mapping[str, int]) -> None:
        self.parts = parts
        self._special = special
        self._rules: list[str] = []
        self._count = 0

    def build(self, tag: Any) -> str:
        """A whole structural tag in Lark's syntax. Raises TagError, RequestError."""
        start = self.part(*_whole(tag), depth=0)
        return "\n".join((f"start: {start}", "TEXT: /(?s:.*)/", *self._rules))

    def part(self, spec: Any, place: str, depth: int) -> str:
        """A Lark expression. Raises TagError."""
        self._count += 1
        if depth > MAX_DEPTH:
            raise TagError(place, f"it is nested more than {MAX_DEPTH} levels deep")
        if self._count > MAX_FORMATS:
            raise TagError("", f"it has more than {MAX_FORMATS} formats within it")
        kind = spec.get("type") if isinstance(spec, dict) else None
        make = _FORMATS.get(kind) if isinstance(kind, str) else None
        if make is None:
            raise TagError(f"{place}.type", f"must be one of {', '.join(_FORMATS)}")
        return make(self, spec, place, depth + 1)

    def literal(self, text: str) -> str:
        """A text that must come next; "" for none."""
        names = sorted((name for name in self._special if name in text), key=len, reverse=True)
        if not names:
            return json.dumps(text) if text else ""
        pieces = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return " ".join(f"<[{self._special[piece]}]>" if piece in self._special else json.dumps(piece)
                        for piece in pieces if piece)  # fmt: skip

    def until(self, text: str) -> str:
        """Any text up to and including the first `text`."""
        name = next((name for name in self._special if text.startswith(name)), None)
        if name is not None:  # no text holds a special token
            return f"TEXT {self.literal(text)}"
        return self.rule(f"TEXT {json.dumps(text)}", "[lazy]")

    def rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body or _NOTHING}")
        return name


def _whole(tag: Any) -> tuple[Any, str]:
    """The format of a structural tag, and its place."""
    if not isinstance(tag, dict) or tag.get("type", "structural_tag") != "structural_tag":
        raise TagError("", 'must be an object with the type "structural_tag"')
    if "format" in tag:
        return tag["format"], ".format"
    structures = _objects(tag, "structures", "")
    tags = [
        {
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
            "end": each.get("end"),
        }
        for each in structures
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}, ""


# ---- the formats -----------------------------------------------------------------------------------------------------


def _const(builder: Builder, spec: dict[str, Any], place: str, _depth: int) -> str:
    return builder.literal(_text(spec, "value", place))


def _schema(builder: Builder, spec: dict[str, Any], place: str, _depth: int) -> str:
    strict, lenient = spec.get("strict"), spec.get("lenient") is True
    if not isinstance(strict, bool | None):
        raise TagError(f"{place}.strict", "must be true or false")
    schema_place = f".structural_tag{place}.json_schema"
    return builder.parts.json_schema(spec.get("json_schema"), schema_place, strict=strict, lenient=lenient)


def _regex(builder: Builder, spec: dict[str, Any], place: str, _depth: int) -> str:
    pattern, quoted = _text(spec, "pattern", place), spec.get("quoted") is True
    return builder.parts.regex(pattern, f".structural_tag{place}.pattern", quoted=quoted)


def _grammar(builder: Builder, spec: dict[str, Any], place: str, _depth: int) -> str:
    grammar, quoted = _text(spec, "grammar", place), spec.get("quoted") is True
    return builder.parts.grammar(grammar, f".structural_tag{place}.grammar", quoted=quoted)


def _any_text(_builder: Builder, spec: dict[str, Any], place: str, _depth: int) -> str:
    if spec.get("excludes"):
        raise TagError(f"{place}.excludes", "is not supported")
    return "TEXT"


def _sequence(builder: Builder, spec: dict[str, Any], place: str, depth: int) -> str:
    elements = _objects(spec, "elements", place)
    if any(each.get("type") == "any_text" for each in elements[:-1]):
        raise TagError(f"{place}.elements", "may have any_text at its end only; use a tag that ends it")
    return " ".join(
        f"({each})" if " | " in each else each
        for index, element in enumerate(elements)
        if (each := builder.part(element, f"{place}.elements[{index}]", depth))
    )


def _or(builder: Builder, spec: dict[str, Any], place: str, depth: int) -> str:
    elements = _objects(spec, "elements", place)
    rules = [builder.rule(builder.part(each, f"{place}.elements[{n}]", depth)) for n, each in enumerate(elements)]
    return builder.rule(" | ".join(rules))


def _tag(builder: Builder, spec: dict[str, Any], place: str, depth: int) -> str:
    return _rest_of_tag(builder, spec, place, depth, builder.literal(_text(spec, "begin", place)))


def _rest_of_tag(builder: Builder, spec: dict[str, Any], place: str, depth: int, begun: str) -> str:
    """A tag whose beginning is `begun`, an expression."""
    ends = spec.get("end", "")
    ends = [ends] if isinstance(ends, str) else ends
    if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
        raise TagError(f"{place}.end", "must be a text, or several")
    content = spec.get("content")
    if isinstance(content, dict) and content.get("type") == "any_text" and any(ends):
        if len(ends) > 1 or not ends[0]:
            raise TagError(f"{place}.end", "must be one text where the content is any_text")
        return builder.rule(f"{begun} {builder.until(ends[0])}")
    inner = builder.part(content, f"{place}.content", depth)
    closing = " | ".join(builder.literal(end) or _NOTHING for end in ends)
    return builder.rule(f"{begun} {inner} {f'({closing})' if len(ends) > 1 else builder.literal(ends[0])}".strip())


def _triggered(builder: Builder, spec: dict[str, Any], place: str, depth: int) -> str:
    """Free text in which a trigger begins one of the tags that start with it."""
    triggers, tags = spec.get("triggers"), _objects(spec, "tags", place)
    if not isinstance(triggers, list) or not triggers or not all(isinstance(one, str) and one for one in triggers):
        raise TagError(f"{place}.triggers", "must be texts")
    rules = []
    for index, tag in enumerate(tags):
        where = f"{place}.tags[{index}]"
        begin = _text(tag, "begin", where)
        trigger = next((one for one in triggers if begin.startswith(one)), None)
        if trigger is None:
            raise TagError(f"{where}.begin", "must start with a trigger")
        rest = builder.literal(begin[len(trigger) :])
        if spec.get("at_least_one") and spec.get("stop_after_first"):
            begun = builder.literal(begin)
        else:
            begun = f"{builder.until(trigger)} {rest}".strip()
        rules.append(_rest_of_tag(builder, tag, where, depth, begun))
    one = builder.rule(" | ".join(rules))
    if spec.get("stop_after_first"):
        return one if spec.get("at_least_one") else builder.rule(f"{one} | TEXT")
    return builder.rule(f"{one}{'+' if spec.get('at_least_one') else '*'} TEXT")


def _separated(builder: Builder, spec: dict[str, Any], place: str, depth: int) -> str:
    tags = _objects(spec, "tags", place)
    one = builder.rule(" | ".join(_tag(builder, tag, f"{place}.tags[{n}]", depth) for n, tag in enumerate(tags)))
    between = builder.literal(_text(spec, "separator", place))
    several = one if spec.get("stop_after_first") else builder.rule(f"{one} ({between} {one})*")
    return several if spec.get("at_least_one") else builder.rule(f"({several})?")


_FORMATS: Mapping[str, Callable[[Builder, dict[str, Any], str, int], str]] = {
    "const_string": _const,
    "json_schema": _schema,
    "regex": _regex,
    "grammar": _grammar,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered,
    "tags_with_separator": _separated,
}


def _objects(spec: dict[str, Any], name: str, place: str) -> Sequence[dict[str, Any]]:
    found = spec.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        raise TagError(f"{place}.{name}", "must be a list of objects, and not empty")
    return found


def _text(spec: dict[str, Any], name: str, place: str) -> str:
    found = spec.get(name, "" if name == "separator" else None)
    if not isinstance(found, str):
        raise TagError(f"{place}.{name}", "must be a text")
    return found
