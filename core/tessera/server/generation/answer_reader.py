"""Reads what the model wrote: text, or text, reasoning and calls, as it arrives."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol

from tessera.parsing.calls import Tool
from tessera.parsing.response import Content, Event, Reasoning, ResponseFormat, ResponseParser
from tessera.request import CompletionOutput
from tessera.text import Vocabulary


class AnswerReader(Protocol):
    """Reads one choice. calls: how many it has so far. reasoning_tokens: of its tokens so far."""

    @property
    def calls(self) -> int: ...

    @property
    def reasoning_tokens(self) -> int: ...

    def read(self, answer: CompletionOutput) -> list[Event]:
        """What is new, or all of a whole answer."""
        ...


class PlainReader:
    """For answers that are text."""

    calls: int = 0
    reasoning_tokens: int = 0

    def __init__(self) -> None:
        self._place = 0

    def read(self, answer: CompletionOutput) -> list[Event]:
        self._place += len(answer.text)
        return [Content(answer.text, self._place)] if answer.text else []


class FormatReader:
    """For answers with reasoning or calls. begun: whether they begin within reasoning. prompt: what the prompt has
    written of them, where the format needs it. hidden: reasoning is left out."""

    def __init__(
        self,
        written: ResponseFormat,
        tools: Iterable[Tool],
        vocabulary: Vocabulary | None,
        *,
        begun: bool,
        prompt: str,
        hidden: bool,
    ) -> None:
        self._parser = ResponseParser(written, tools, reasons=begun, prompt=prompt)
        self._hidden = hidden
        self._counter = ReasoningCounter(self._parser, vocabulary)

    @property
    def calls(self) -> int:
        return self._parser.num_calls

    @property
    def reasoning_tokens(self) -> int:
        return self._counter.count

    def read(self, answer: CompletionOutput) -> list[Event]:
        events = self._parser.feed(answer.text)
        self._counter.add(answer)
        if answer.finished:
            events += self._parser.finish()
        return [event for event in events if not isinstance(event, Reasoning)] if self._hidden else events


class ReasoningCounter:
    """Counts the tokens of reasoning, with those of its markers, by where tokens begin in the answer."""

    def __init__(self, parser: ResponseParser, vocabulary: Vocabulary | None) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._next = 0
        self._begins: list[int] = []
        self._waiting: list[int] = []
        """Tokens after the reasoning so far, which may come again."""

    def add(self, answer: CompletionOutput) -> None:
        """answer: what is new, after the parser has read it."""
        self._waiting += answer.token_ids
        if self._vocabulary is None or self._next >= self._parser.reasoning_end:
            return
        for token in self._waiting:
            self._begins.append(self._next)
            self._next += len(self._utf8.decode(self._vocabulary.token_bytes(token)))
        self._waiting = []

    @property
    def count(self) -> int:
        begins, since = self._begins, self._parser.reasons_since
        closed = sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in self._parser.reasoned)
        return closed if since is None else closed + len(begins) - bisect_left(begins, since)
