"""How models write the calls of tools: a class for each way, with the markers and names that differ.

Each reads calls from a text that arrives in pieces, and says by structural tags what a grammar has to demand, so that
what is forced is what is read.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tessera.parsing.custom import INPUT
from tessera.parsing.parameters import NESTED, NOT_STRINGS, Parameters
from tessera.parsing.reader import Emit, Malformed, Reader, Wait, dropped
from tessera.parsing.values import PYTHON, QUOTES, json_string, json_value, literal, name

Format = dict[str, Any]
"""A format of structural tags (text/structural_tag.py)."""

MAX_NAME_CHARS = 128
_MAX_OMITTED = 24
"""Parameters that may all be left out where commas separate them; of more, the first one is there."""
_MAX_CHOICES = 32


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    # Its JSON Schema.
    parameters: Any = None
    # Whether arguments must be valid by it.
    strict: bool = False
    # Whether it is a custom tool, whose only parameter is its input.
    custom: bool = False
    # What the input of a custom tool has to be; None: any text.
    form: Format | None = None

    @cached_property
    def declared(self) -> Parameters:
        """What its parameters are, by their schema."""
        return Parameters(self.parameters)

    def value(self, schema: Any, types: Sequence[str] | None = None) -> Format:
        """JSON that is valid by the schema of a parameter. types: those that it may be of; None: all of the schema's.
        Not strict: as far as it can be enforced."""
        if self.form is not None:
            return _sequence([_const('"'), {**self.form, "quoted": True}, _const('"')])
        return self._json(self.declared.standalone(schema, types))

    def _json(self, schema: Any) -> Format:
        return {"type": "json_schema", "json_schema": schema, "strict" if self.strict else "lenient": True}

    def arguments(self) -> Format:
        """All of them, which are always an object."""
        if self.form is not None:
            return _sequence([_const(f'{{"{INPUT}": '), self.value(None), _const("}")])
        schema = self.parameters if isinstance(self.parameters, dict) else {}
        return self._json({**schema, "type": "object"})


class Sink(Protocol):
    """Takes the calls that are read. tools: by name. begin: of a call; call_id: the model's own, if it gave one.
    arguments: a piece of the JSON of the arguments of the call that was begun last."""

    tools: Mapping[str, Tool]

    def begin(self, name: str, call_id: str | None = None) -> None: ...
    def arguments(self, text: str) -> None: ...


class CallSyntax(ABC):
    """A way of writing calls, and what a grammar has to demand for it. id_chars: the length of ids that the model
    knows; 0: it knows any. separator: what stands between calls."""

    id_chars: int = 0
    separator: str = ""

    @property
    @abstractmethod
    def begins(self) -> tuple[str, ...]:
        """The texts with which calls begin in an answer."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that mark something; some are special tokens of the model."""
        return self.begins

    @property
    def around(self) -> tuple[str, str]:
        """What stands before and after all calls."""
        return ("", "")

    @property
    def text(self) -> Format | None:
        """What an answer without calls is, if its beginning tells it from calls; None: text in which calls may
        begin."""
        return None

    @abstractmethod
    def tag(self, tool: Tool) -> Format:
        """One call: a tag with begin, content and end."""

    def several(self, tags: Sequence[Format], *, parallel: bool) -> Format:
        """An answer that is calls, one or several. tags: of the tools. parallel: whether there may be several."""
        begin, end = self.around
        whole: Format = {
            "type": "tags_with_separator", "tags": list(tags), "separator": self.separator, "at_least_one": True,
            "stop_after_first": not parallel,
        }  # fmt: skip
        return _tag(begin, whole, end) if begin or end else whole

    def new_id(self, name: str, index: int) -> str:
        """An id for a call to which the model gave none. index: of the call in the answer."""
        return secrets.token_hex(self.id_chars)[: self.id_chars] if self.id_chars else f"call_{secrets.token_hex(12)}"

    @property
    def demands_ids(self) -> bool:
        """Whether the model knows ids of one form only."""
        return self.id_chars > 0

    def earlier_id(self, call_id: str | None, name: str, index: int) -> str:
        """The id of an earlier call in the form that the model knows; one that has it stays. index: of the call in the
        chat. name: "" if it is not known."""
        if call_id is not None and len(call_id) == self.id_chars and call_id.isascii() and call_id.isalnum():
            return call_id
        said = f"{index}" if call_id is None else call_id
        return hashlib.sha256(said.encode(errors="replace")).hexdigest()[: self.id_chars]


class MarkedCalls(CallSyntax):
    """Calls in a text, after something that marks them. whole: an answer may also be calls as a whole, which nothing
    marks. between: what may stand between such calls, beside white space. fences: texts around calls that the model
    was not told to write, which are read all the same."""

    whole: bool = False
    between: str = ""

    @property
    def fences(self) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        """Reads one call or several, after `begun`: one of begins, or "" for the whole answer. Raises Malformed for
        what is no call."""


@dataclass(frozen=True)
class JsonCalls(MarkedCalls):
    """An object with the name and the arguments, between two markers; listed: or a list of such objects. space: what
    the model was trained to write within the markers. named: only what names a tool is a call."""

    begin: str
    end: str = ""
    arguments_key: str = "arguments"
    listed: bool = False
    whole: bool = False
    between: str = ""
    named: bool = False
    space: str = ""
    separator: str = ""
    id_chars: int = 0

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.end) if self.end else (self.begin,)

    @property
    def around(self) -> tuple[str, str]:
        return (f"{self.begin}{self.space}[", f"]{self.end}") if self.listed else ("", "")

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        yield from reader.space()
        if (yield from reader.literal("[")):
            yield from self._list(reader, sink)
        else:
            yield from self._object(reader, sink)
        if end := self.fences.get(begun, self.end):
            yield from reader.space()
            yield from reader.literal(end)

    def _list(self, reader: Reader, sink: Sink) -> Wait:
        while not (yield from _next(reader, "]")):
            yield from self._object(reader, sink)
            yield from _next(reader, ",")

    def _object(self, reader: Reader, sink: Sink) -> Wait:
        """Passes the arguments on as they are read, once the name is known."""
        yield from reader.space()
        yield from reader.expect("{")
        called = ""
        held: list[str] = []
        given = False
        while not (yield from _next(reader, "}")):
            key = yield from json_string(reader)
            if not (yield from _next(reader, ":")):
                raise Malformed
            yield from reader.space()
            if key == "name" and not called:
                called = yield from json_string(reader)
                if self.named and called not in sink.tools:
                    raise Malformed
                sink.begin(called)
                sink.arguments("".join(held))
            elif key in ("arguments", "parameters"):
                given = True
                yield from _whole_arguments(reader, sink.arguments if called else held.append)
            else:
                yield from json_value(reader, dropped)
            yield from _next(reader, ",")
        if not called:
            raise Malformed
        if not given:
            sink.arguments("{}")

    def tag(self, tool: Tool) -> Format:
        head = f'{{"name": {json.dumps(tool.name)}, "{self.arguments_key}": '
        if self.listed:
            return _tag(head, tool.arguments(), "}")
        return _tag(f"{self.begin}{self.space}{head}", tool.arguments(), f"}}{self.space}{self.end}")


@dataclass(frozen=True)
class NamedCalls(MarkedCalls):
    """A name, and the arguments as JSON, between markers. section: what stands around all calls. lead: what stands
    before the name. numbered: the name is `functions.NAME:INDEX`, which is the id too."""

    call: tuple[str, str]
    name_end: str
    section: tuple[str, str] = ("", "")
    lead: str = ""
    after: str = ""
    numbered: bool = False
    id_marker: str = ""
    id_chars: int = 0
    separator: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.section[0], self.call[0]) if self.section[0] else (self.call[0],)

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.section, *self.call, self.name_end.strip(), self.lead, self.id_marker)))

    @property
    def around(self) -> tuple[str, str]:
        return self.section

    def new_id(self, name: str, index: int) -> str:
        return f"functions.{name}:{index}" if self.numbered else super().new_id(name, index)

    @property
    def demands_ids(self) -> bool:
        return self.numbered or super().demands_ids

    def earlier_id(self, call_id: str | None, name: str, index: int) -> str:
        if not self.numbered:
            return super().earlier_id(call_id, name, index)
        if call_id is not None and (not name or _NUMBERED.fullmatch(call_id)):
            return call_id
        return f"functions.{name}:{index}"

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        if begun == self.call[0]:
            yield from self._call(reader, sink)
        while self.section[0]:
            yield from reader.space()
            if (yield from reader.literal(self.section[1])):
                return
            yield from reader.expect(self.call[0])
            yield from self._call(reader, sink)

    def _call(self, reader: Reader, sink: Sink) -> Wait:
        yield from reader.literal(self.lead)
        parts: list[str] = []
        name_end = self.name_end.rstrip()
        markers = (name_end, self.id_marker) if self.id_marker else (name_end,)
        marker = yield from reader.until(markers, parts.append)
        call_id = None
        if marker == self.id_marker and marker:
            found: list[str] = []
            marker = yield from reader.until((name_end,), found.append)
            call_id = "".join(found).strip()
        if marker is None:
            raise Malformed
        called = "".join(parts).strip()
        if self.numbered:
            call_id, called = called, called.removeprefix("functions.").rpartition(":")[0] or called
        if not called:
            raise Malformed
        sink.begin(called, call_id)
        yield from reader.space()
        yield from json_value(reader, sink.arguments)
        yield from reader.space()
        yield from reader.literal(self.after.strip())
        if self.call[1]:
            yield from reader.space()
            yield from reader.literal(self.call[1])

    def tag(self, tool: Tool) -> Format:
        called = f"functions.{tool.name}:0" if self.numbered else tool.name
        begin = f"{self.call[0]}{self.lead}{called}{self.name_end}"
        return _tag(begin, tool.arguments(), f"{self.after}{self.call[1]}")


@dataclass(frozen=True)
class TaggedCalls(MarkedCalls):
    """A name, and each argument between tags."""

    # What stands around each call, or around all of them if `together`.
    section: tuple[str, str]
    # What stands before and after the name of the function.
    name: tuple[str, str]
    # What stands before and after a parameter's name.
    key: tuple[str, str]
    # What stands before and after its value.
    value: tuple[str, str]
    # What ends a call.
    end: str = ""
    together: bool = False
    # Whether a value stands on lines of its own.
    line: bool = False
    # Whether parameters say whether they are strings.
    marks_strings: bool = False
    # What stands between calls.
    separator: str = "\n"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.section[0], self.name[0]) if self.name[0] else (self.section[0],)

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.section, *self.name, *self.key, *self.value, self.end)))

    @property
    def around(self) -> tuple[str, str]:
        return (f"{self.section[0]}\n", f"\n{self.section[1]}") if self.together else ("", "")

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        inside = begun == self.section[0]
        if inside:
            yield from reader.space()
            yield from reader.expect(self.name[0])
        yield from self._call(reader, sink)
        while self.together and inside and (yield from _next(reader, self.name[0])):
            yield from self._call(reader, sink)
        yield from reader.space()
        yield from reader.literal(self.section[1])

    def _call(self, reader: Reader, sink: Sink) -> Wait:
        parts: list[str] = []
        ends = (self.key[0], self.end or self.section[1])
        name_end = self.name[1].rstrip() or self.name[1]
        marker = yield from reader.until((name_end, *ends), parts.append)
        called = "".join(parts).strip()
        if not called or marker is None:
            raise Malformed
        sink.begin(called)
        own = sink.tools[called].declared if called in sink.tools else Parameters()
        separator = "{"
        while marker not in ends[1:]:
            if marker != self.key[0]:
                marker = yield from reader.until(ends, dropped)
            if marker is None:
                raise Malformed
            if marker == self.key[0]:
                sink.arguments(separator)
                separator, marker = ", ", ""
                yield from self._parameter(reader, own, sink.arguments)
        sink.arguments("{}" if separator == "{" else "}")

    def _parameter(self, reader: Reader, parameters: Parameters, emit: Emit) -> Wait:
        parts: list[str] = []
        if (yield from reader.until((self.key[1],), parts.append)) is None:
            raise Malformed
        key, mark = "".join(parts).strip(), ""
        if self.marks_strings:
            key, _, mark = key.partition('" string="')
        declared = parameters.declared(key)
        if mark:
            declared = declared.of_types(("string",) if mark == "true" else NOT_STRINGS)
        if self.value[0]:
            yield from reader.space()
            yield from reader.expect(self.value[0])
        if self.line:
            yield from reader.literal("\n")
        emit(f"{json.dumps(key, ensure_ascii=False)}: ")
        ends = (f"\n{self.value[1]}", self.value[1]) if self.line else (self.value[1],)
        if declared.types == ("string",):
            emit('"')
            ended = yield from reader.until(ends, lambda text: emit(json.dumps(text, ensure_ascii=False)[1:-1]))
            emit('"')
        else:
            value: list[str] = []
            ended = yield from reader.until(ends, value.append)
            emit(json.dumps(declared.value("".join(value)), ensure_ascii=False))
        if ended is None:
            raise Malformed

    def tag(self, tool: Tool) -> Format:
        elements = []
        for key in tool.declared.schemas:
            one = self._forced(tool, key)
            elements.append(one if tool.declared.required(key) else _optional(one))
        head, tail = self.section if not self.together else ("", "")
        begin = f"{head}{chr(10) if head and self.name[0] else ''}{self.name[0]}{tool.name}{self.name[1]}"
        return _tag(begin, _sequence(elements), f"{self.end}{chr(10) if tail and self.end else ''}{tail}")

    def _forced(self, tool: Tool, key: str) -> Format:
        """A parameter whose value is read as it is meant: a text without quotes, and all else as JSON."""
        if tool.form is not None:
            return self._between(key, tool.form, text=True)
        declared = tool.declared.declared(key)
        texts, others = declared.parted()
        if texts.values is not None:
            written = [value for value in texts.values if self.value[1] not in value]
            forms = [self._between(key, one_of(written), text=True)] if written else []
            left = others.types
        elif texts.types:
            # Other words and numbers are read as texts, unless the model says what they are.
            left = others.types
            if not self.marks_strings:
                left = tuple(kind for kind in left if kind in NESTED and declared.says_type)
            forms = [self._text(key, nested=bool(left) and not self.marks_strings)]
        else:
            forms, left = [], others.types
        if left or not forms:
            forms.append(self._between(key, tool.value(tool.declared.schemas[key], left or None), text=False))
        return either(forms)

    def _begin(self, key: str, *, text: bool) -> str:
        mark = f'" string="{"true" if text else "false"}' if self.marks_strings else ""
        return f"{self.key[0]}{key}{mark}{self.key[1]}{self.value[0]}{chr(10) if self.line else ''}"

    def _between(self, key: str, content: Format, *, text: bool) -> Format:
        return _tag(self._begin(key, text=text), content, f"{chr(10) if self.line else ''}{self.value[1]}\n")

    def _text(self, key: str, *, nested: bool) -> Format:
        """Any text; one that looks like a list or an object would be read as one if `nested`."""
        # The line break at its end is left to the model: the first marker ends the value, with a break or without.
        begin, end, rest = self._begin(key, text=True), self.value[1], _const("\n")
        if not nested:
            return _sequence([_tag(begin, {"type": "any_text"}, end), rest])
        first = {"type": "regex", "pattern": rf"[^\s\[{{({end[0]}]|{end[0]}[^{end[1]}{end[0]}]"}
        text = _sequence([first, _tag("", {"type": "any_text"}, end)])
        return _sequence([_const(begin), either([text, _const(end)]), rest])


@dataclass(frozen=True)
class PythonCalls(MarkedCalls):
    """A list of calls in Python's syntax, with arguments by name."""

    markers_around: tuple[str, str] = ("", "")
    separator: str = ", "
    whole: bool = True

    @property
    def begins(self) -> tuple[str, ...]:
        return tuple(filter(None, self.markers_around[:1]))

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, self.markers_around))

    @property
    def around(self) -> tuple[str, str]:
        begin, end = self.markers_around
        return f"{begin}[", f"]{end}"

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        yield from reader.space()
        yield from reader.expect("[")
        while not (yield from _next(reader, "]")):
            called = yield from name(reader)
            arguments = yield from _by_name(reader, "(", "=", ")", QUOTES)
            sink.begin(called)
            sink.arguments(json.dumps(arguments, ensure_ascii=False))
            yield from _next(reader, ",")
        if self.markers_around[1]:
            yield from reader.space()
            yield from reader.literal(self.markers_around[1])

    def tag(self, tool: Tool) -> Format:
        members = [
            (_tag(f"{key}=", tool.value(schema), ""), tool.declared.required(key))
            for key, schema in tool.declared.schemas.items()
        ]
        return _tag(f"{tool.name}(", _listed(members, ", "), ")")


@dataclass(frozen=True)
class ObjectCalls(MarkedCalls):
    """`call:NAME{KEY:VALUE,...}` between two markers; strings stand between quotes of the model's own."""

    around_call: tuple[str, str]
    quote: str

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.around_call[0],)

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.around_call, self.quote)

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        yield from reader.space()
        yield from reader.expect("call:")
        called = yield from name(reader)
        arguments = yield from _by_name(reader, "{", ":", "}", (self.quote, *QUOTES))
        sink.begin(called)
        sink.arguments(json.dumps(arguments, ensure_ascii=False))
        yield from reader.space()
        yield from reader.literal(self.around_call[1])

    def tag(self, tool: Tool) -> Format:
        members = [(self._forced(tool, key), tool.declared.required(key)) for key in tool.declared.schemas]
        begin = f"{self.around_call[0]}call:{tool.name}{{"
        return _tag(begin, _listed(members, ","), f"}}{self.around_call[1]}")

    def _forced(self, tool: Tool, key: str) -> Format:
        """A text between the model's own quotes, unless its schema says more than that it is one; all else as JSON."""
        if tool.form is not None:
            return _tag(f"{key}:{self.quote}", tool.form, self.quote)
        declared = tool.declared.declared(key)
        texts, others = declared.parted()
        forms, left = [], others.types
        if texts.values:
            forms.append(_tag(f"{key}:{self.quote}", one_of(texts.values), self.quote))
        elif texts.types and declared.plain and declared.says_type:
            forms.append(_tag(f"{key}:{self.quote}", {"type": "any_text"}, self.quote))
        elif texts.types:
            left = ()
        if left or not forms:
            forms.append(_tag(f"{key}:", tool.value(tool.declared.schemas[key], left or None), ""))
        return either(forms)


# ---- parts of calls --------------------------------------------------------------------------------------------------


def _next(reader: Reader, text: str) -> Generator[None, None, bool]:
    """Takes a text, after white space, and returns whether it was there."""
    yield from reader.space()
    return (yield from reader.literal(text))


def _whole_arguments(reader: Reader, emit: Emit) -> Wait:
    """Arguments as an object, or as a string that holds its JSON."""
    if (yield from reader.peek()) == '"':
        emit((yield from json_string(reader)))
    else:
        yield from json_value(reader, emit)


def _by_name(
    reader: Reader, begin: str, between: str, end: str, quotes: tuple[str, ...]
) -> Generator[None, None, dict[str, Any]]:
    """Arguments by name, separated by commas. Raises Malformed."""
    yield from reader.space()
    yield from reader.expect(begin)
    found: dict[str, Any] = {}
    while not (yield from _next(reader, end)):
        key = yield from name(reader)
        yield from reader.space()
        yield from reader.expect(between)
        found[key] = yield from literal(reader, quotes, PYTHON)
        yield from reader.space()
        if not (yield from reader.literal(",")) and (yield from reader.peek()) != end:
            raise Malformed
    return found


# ---- parts of structural tags ----------------------------------------------------------------------------------------


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def either(forms: Sequence[Format]) -> Format:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": list(forms)}


def one_of(texts: Sequence[str]) -> Format:
    """One of several texts; of many, as a single part of the grammar."""
    if len(texts) > _MAX_CHOICES:
        return {"type": "regex", "pattern": "|".join(map(re.escape, texts))}
    return either([_const(text) for text in texts])


def _optional(form: Format) -> Format:
    return either([form, _const("")])


def _sequence(elements: Sequence[Format]) -> Format:
    return {"type": "sequence", "elements": list(elements)} if elements else _const("")


def _listed(members: Sequence[tuple[Format, bool]], separator: str) -> Format:
    """Members with what separates them: those that are required, and then any of the others."""
    others = [one for one, required in members if not required]
    needed = [one for one, required in members if required]
    if needed:
        rest = [_sequence([_const(separator), one]) for one in needed[1:]]
        return _sequence([needed[0], *rest, *_any(others, separator)])
    firsts = others if len(others) <= _MAX_OMITTED else others[:1]
    choices = [_sequence([one, *_any(others[n + 1 :], separator)]) for n, one in enumerate(firsts)]
    return {"type": "or", "elements": [*choices, _const("")]}


def _any(members: Sequence[Format], separator: str) -> list[Format]:
    return [_optional(_sequence([_const(separator), one])) for one in members]


_NUMBERED = re.compile(r"functions\.[\w.\-]+:\d+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")


def is_name(text: str) -> bool:
    """Whether a text may name a tool: letters, digits, `_`, `-` and `.`."""
    return 0 < len(text) <= MAX_NAME_CHARS and not _UNSAFE.search(text)
