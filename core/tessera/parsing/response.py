"""Reads a model's answer as it arrives: its reasoning, its text, and the calls of tools."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.parsing.calls import CallSyntax, Format, MarkedCalls, Tool
from tessera.parsing.custom import InputReader
from tessera.parsing.reader import SPACE, Malformed, Reader, Wait
from tessera.parsing.values import encodable


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the text that is the answer. end: its place in what the model wrote, in characters."""

    text: str
    end: int = field(default=0, compare=False)

    @property
    def begin(self) -> int:
        return self.end - len(self.text)


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool. index: its number in the answer. custom: the tool is a custom one."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON of a call's arguments, or of the input of a custom tool."""

    index: int
    text: str
    custom: bool = False


Event = Reasoning | Content | CallBegin | CallArguments


@dataclass(frozen=True)
class ReasoningMarkers:
    """The texts around reasoning. begun: whether answers begin with reasoning where the prompt does not end it."""

    begin: str
    end: str
    begun: bool = False


@dataclass(frozen=True)
class ResponseFormat(ABC):
    """How a family of models writes its answers. reasoning, calls: None if it has none. forces: whether a grammar can
    demand what is read."""

    name: str
    reasoning: ReasoningMarkers | None = None
    calls: CallSyntax | None = None
    forces: bool = True

    @property
    def reasons(self) -> bool:
        """Whether answers may have reasoning."""
        return self.reasoning is not None

    def reads(self, *, tools: bool) -> bool:
        """Whether an answer has to be read: it may hold more than text. tools: whether the model may call any."""
        return self.reasons or tools

    @property
    def prompt_anchor(self) -> str:
        """A pattern of the `regex` library after whose last match in a prompt the answer has begun, where reading needs
        what the template has written of it; "" where it does not."""
        return ""

    @property
    def marks_answers(self) -> bool:
        """Whether the text of an answer stands between markers, which a grammar has to demand too."""
        return False

    @property
    def before_calls(self) -> ReasoningMarkers | None:
        """What stands around reasoning that calls may follow."""
        return self.reasoning

    @property
    def without_reasoning(self) -> str:
        """What follows a prompt that has begun reasoning, so that the answer begins at once."""
        assert self.reasoning is not None
        return f"{self.reasoning.end}\n\n"

    def answer(self, content: Format) -> Format:
        """An answer without calls, where calls may come in its place. content: of the answer."""
        return content

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that mark something; some are special tokens of the model."""
        own = () if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)
        return (*own, *(() if self.calls is None else self.calls.markers))

    @abstractmethod
    def read(self, parser: ResponseParser) -> Wait:
        """Reads a whole answer."""


@dataclass(frozen=True)
class MarkedFormat(ResponseFormat):
    """A text in which markers set reasoning and calls apart."""

    calls: MarkedCalls | None = None

    def read(self, parser: ResponseParser) -> Wait:
        reader, reasoning, calls = parser.reader, self.reasoning, self.calls
        if reasoning is not None and parser.reasons:
            yield from self._reason(parser, reasoning)
        if calls is not None and calls.whole and parser.tools:
            yield from reader.match(SPACE, parser.content)
            # Calls as the whole answer follow reasoning that the model has begun itself, too.
            if reasoning is not None and not parser.reasons and (yield from reader.literal(reasoning.begin)):
                yield from self._reason(parser, reasoning)
                yield from reader.match(SPACE, parser.content)
            if (yield from reader.peek()) in ("{", "["):
                yield from self._calls(parser, calls, "")
        begins = (*calls.begins, *calls.fences) if calls is not None and parser.tools else ()
        markers = (*begins, *((reasoning.begin,) if reasoning is not None else ()))
        while True:
            marker = yield from reader.until(markers, parser.content)
            if marker is None:
                return
            if calls is not None and marker in begins:
                yield from self._calls(parser, calls, marker)
            elif reasoning is not None:
                yield from self._reason(parser, reasoning)

    def _calls(self, parser: ResponseParser, calls: MarkedCalls, begun: str) -> Wait:
        """Calls after `begun`, and where nothing has to mark them, those that follow one another."""
        reader = parser.reader
        while True:
            before = parser.num_calls
            yield from parser.call(calls, begun)
            if not calls.whole or parser.num_calls == before:
                return
            yield from reader.match(SPACE, parser.content)
            between: list[str] = []
            if calls.between and (yield from reader.literal(calls.between)):
                between.append(calls.between)
                yield from reader.match(SPACE, between.append)
            marked = False
            for marker in calls.begins:
                if not marked and (yield from reader.literal(marker)):
                    marked = True
                    between.append(marker)
            begun = "".join(between)
            if not marked and (yield from reader.peek()) not in ("{", "["):
                parser.content(begun)
                return

    def _reason(self, parser: ResponseParser, markers: ReasoningMarkers) -> Wait:
        parser.begin_reasoning()
        # A model that the prompt has made begin may begin again by itself.
        yield from parser.reader.literal(markers.begin)
        if (yield from parser.reader.until((markers.end,), parser.reasoning)) is not None:
            parser.end_reasoning()


@dataclass
class Trimmed:
    """Passes text on without the white space at its end, and at its beginning if `fresh`. emit: takes a text and where
    it ends. place: up to where text was taken."""

    emit: Callable[[str, int], None]
    place: Callable[[], int]
    fresh: bool = False
    withheld: list[str] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        if self.fresh:
            text = text.lstrip()
            self.fresh = not text
        body = text.rstrip()
        if body:
            self.emit("".join((*self.withheld, body)), self.place() - len(text) + len(body))
            self.withheld = []
        self.withheld.append(text[len(body) :])

    def cut(self) -> None:
        """What follows is something else: white space around it is dropped."""
        self.withheld, self.fresh = [], True

    def finish(self) -> None:
        held, self.withheld = "".join(self.withheld), []
        if held and not self.fresh:
            self.emit(held, self.place())


class ResponseParser:
    """Reads one answer. tools: those that the model may call; without any, nothing is taken for a call. reasons:
    whether the answer begins within reasoning. prompt: what the prompt has written of the answer, where the format's
    prompt_anchor asks for it; it is read, and nothing of it is told. Nothing that the model wrote is lost: what looks
    like a call and is none stays text."""

    def __init__(
        self, response_format: ResponseFormat, tools: Iterable[Tool] = (), *, reasons: bool = False, prompt: str = ""
    ) -> None:
        self.format = response_format
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.reasons = reasons
        self.reader = Reader()
        self.num_calls = 0
        self.reasoned: list[tuple[int, int]] = []
        """Where reasoning that is over begins and ends, with its markers, in characters of the answer."""
        self.reasons_since: int | None = None
        """Where the reasoning begins that is going on; None if none is."""
        self.reasoning_end = 0.0
        """Where the last reasoning so far ends; infinite while it goes on."""
        self._told = 0
        """Up to where text and calls were told."""
        self._begun = 0
        """Characters of the prompt that were read."""
        self._events: list[Event] = []
        self.content = Trimmed(self._say, self._place)
        self.reasoning = Trimmed(lambda text, _: self._events.append(Reasoning(text)), self._place)
        self._reading = response_format.read(self)
        self._done = False
        self._input: InputReader | None = None
        if prompt:
            self.feed(prompt)
            self._begin_after(prompt)

    def _begin_after(self, prompt: str) -> None:
        """What was read is not of the answer."""
        self._begun, self._told, self.num_calls, self.reasoned = len(prompt), 0, 0, []
        if self.reasons_since is None:
            self.reasoning_end = 0
        else:
            self.reasons_since = 0
        self.content.withheld, self.reasoning.withheld, self._input = [], [], None

    def feed(self, text: str) -> list[Event]:
        """What is known now. text: the next piece of the answer."""
        self.reader.feed(text)
        return self._go_on()

    def finish(self) -> list[Event]:
        """What is left: the answer is over. Nothing may be fed afterwards."""
        self.reader.ended = True
        events = self._go_on()
        self.content.finish()
        self._end_input()
        events += self._events
        self._events = []
        return events

    def _go_on(self) -> list[Event]:
        if not self._done:
            try:
                next(self._reading)
            except StopIteration:
                self._done = True
        events, self._events = self._events, []
        return _joined(events)

    def _say(self, text: str, end: int) -> None:
        self._told = end
        self._events.append(Content(text, end))

    def _place(self) -> int:
        return self.reader.place - self._begun

    # ---- for formats

    def begin_reasoning(self) -> None:
        self.content.cut()
        self.reasoning.fresh = True
        self.reasons_since, self.reasoning_end = self._told, math.inf

    def end_reasoning(self) -> None:
        self._told = self.reasoning_end = self._place()
        if self.reasons_since is not None:
            self.reasoned.append((self.reasons_since, self._told))
        self.reasons_since = None
        self.reasoning.cut()
        self.content.fresh = True

    def call(self, calls: MarkedCalls, begun: str) -> Wait:
        """Reads calls that begin with `begun`. What is no call is content."""
        self.reader.mark()
        before, held, fresh = self.num_calls, self.content.withheld, self.content.fresh
        self.content.cut()
        with suppress(Malformed):
            yield from calls.read(self.reader, begun, self)
        self._told = self._place()
        raw = self.reader.taken()
        if self.num_calls == before:
            self.content.withheld, self.content.fresh = held, fresh
            self.content(begun + raw)

    def begin(self, name: str, call_id: str | None = None) -> None:
        assert self.format.calls is not None
        self._end_input()
        made = call_id or self.format.calls.new_id(name, self.num_calls)
        custom = name in self.tools and self.tools[name].custom
        self._told = self._place()
        self._events.append(CallBegin(self.num_calls, made, encodable(name), custom))
        self._input = InputReader() if custom else None
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        self._continue(text if self._input is None else self._input.feed(text))

    def _end_input(self) -> None:
        """The call that was begun last is over."""
        if self._input is not None:
            self._continue(self._input.finish())
            self._input = None

    def _continue(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self.num_calls - 1, encodable(text), self._input is not None))


def _joined(events: list[Event]) -> list[Event]:
    """Neighbouring pieces of the same kind as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Content) and isinstance(last, Content) and last.end == event.begin:
            joined[-1] = Content(last.text + event.text, event.end)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            joined[-1] = CallArguments(event.index, last.text + event.text, event.custom)
        else:
            joined.append(event)
    return joined


class ParsedCall(NamedTuple):
    """arguments: as JSON; of a custom tool, its input."""

    id: str
    name: str
    arguments: str
    custom: bool = False


@dataclass
class Message:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Message:
        message = cls()
        parts: dict[type, list[str]] = {Content: [], Reasoning: []}
        arguments: list[list[str]] = []
        heads: list[CallBegin] = []
        for event in events:
            match event:
                case Content(text) | Reasoning(text):
                    parts[type(event)].append(text)
                case CallBegin():
                    heads.append(event)
                    arguments.append([])
                case CallArguments(index, text):
                    arguments[index].append(text)
        message.content, message.reasoning = "".join(parts[Content]), "".join(parts[Reasoning])
        message.calls = [
            ParsedCall(head.id, head.name, "".join(pieces), head.custom)
            for head, pieces in zip(heads, arguments, strict=True)
        ]
        return message
