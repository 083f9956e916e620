"""Turns what the model wrote into a message: text, or text, reasoning and calls, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from tessera.parsing.calls import Tool
from tessera.parsing.response import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Message,
    Reasoning,
    ResponseFormat,
    ResponseParser,
)
from tessera.request import CompletionOutput
from tessera.server.openai.protocol import AnswerMessage, FunctionCall, ToolCall
from tessera.text import Vocabulary

_encode = msgspec.json.Encoder().encode


class AnswerReader(Protocol):
    """Reads one choice. calls: how many it has so far. reasoning_tokens: of its tokens so far."""

    @property
    def calls(self) -> int: ...

    @property
    def reasoning_tokens(self) -> int: ...

    def message(self, answer: CompletionOutput) -> AnswerMessage:
        """The message of a whole answer."""
        ...

    def deltas(self, answer: CompletionOutput) -> list[bytes]:
        """What is new, each as the JSON of a chunk's delta."""
        ...


class PlainReader:
    """For answers that are text."""

    calls: int = 0
    reasoning_tokens: int = 0

    def message(self, answer: CompletionOutput) -> AnswerMessage:
        return AnswerMessage(answer.text)

    def deltas(self, answer: CompletionOutput) -> list[bytes]:
        return [b'{"content":' + _encode(answer.text) + b"}"] if answer.text else []


class FormatReader:
    """For answers with reasoning or calls. reasons: whether they begin within reasoning. hidden: reasoning is left
    out."""

    def __init__(
        self,
        known: ResponseFormat,
        tools: Iterable[Tool],
        vocabulary: Vocabulary | None,
        *,
        reasons: bool,
        hidden: bool,
    ) -> None:
        self._parser = ResponseParser(known, tools, reasons=reasons)
        self._shows_reasoning = known.reasoning is not None and not hidden
        self._counter = ReasoningCounter(self._parser, vocabulary)

    @property
    def calls(self) -> int:
        return self._parser.num_calls

    @property
    def reasoning_tokens(self) -> int:
        return self._counter.count

    def message(self, answer: CompletionOutput) -> AnswerMessage:
        read = Message.of(self._read(answer))
        message = AnswerMessage(read.content if read.content or not read.calls else None)
        if read.calls:
            message.tool_calls = [ToolCall(FunctionCall(name, text), call_id) for call_id, name, text in read.calls]
        if self._shows_reasoning:
            message.reasoning = message.reasoning_content = read.reasoning or None
        return message

    def deltas(self, answer: CompletionOutput) -> list[bytes]:
        return [_delta(event) for event in self._read(answer)]

    def _read(self, answer: CompletionOutput) -> list[Event]:
        events = self._parser.feed(answer.text)
        self._counter.add(answer)
        if answer.finished:
            events += self._parser.finish()
        return events if self._shows_reasoning else [event for event in events if not isinstance(event, Reasoning)]


class ReasoningCounter:
    """Counts the tokens of reasoning, with those of its markers: those whose bytes lie before its end."""

    def __init__(self, parser: ResponseParser, vocabulary: Vocabulary | None) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._bytes = 0
        self.count = 0

    def add(self, answer: CompletionOutput) -> None:
        """answer: what is new, after the parser has read it."""
        end = self._parser.reasoning_end
        if self._vocabulary is None or self._bytes >= end:
            return
        for token in answer.token_ids:
            if self._bytes >= end:
                return
            self._bytes += len(self._vocabulary.token_bytes(token))
            self.count += 1


def _delta(event: Event) -> bytes:
    match event:
        case Content(text):
            return b'{"content":' + _encode(text) + b"}"
        case Reasoning(text):
            shown = _encode(text)
            return b'{"reasoning":' + shown + b',"reasoning_content":' + shown + b"}"
        case CallBegin(index, call_id, name):
            head = b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]}'
            return head % (index, _encode(call_id), _encode(name))
        case CallArguments(index, text):
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, _encode(text))
