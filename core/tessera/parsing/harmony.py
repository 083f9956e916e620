"""gpt-oss's format, harmony (https://cookbook.openai.com/articles/openai-harmony): an answer is several messages, each
with a header that names its channel. `analysis` is reasoning, `final` the answer, and `commentary` a call if it is
addressed to a function, else text."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from tessera.parsing.calls import CallSyntax, Format, Tool
from tessera.parsing.reader import Wait
from tessera.parsing.response import ReasoningMarkers, ResponseFormat, ResponseParser

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_ADDRESSED = re.compile(r"to=(?:functions\.)?(?P<name>[\w.\-]+)")
_FINAL = f"{_CHANNEL}final{_MESSAGE}"


def final(content: Format) -> Format:
    """The final message, after the message of reasoning has ended."""
    # Two texts, because calls begin with the first of them too.
    lead: list[Format] = [{"type": "const_string", "value": text} for text in (f"{_START}assistant", _FINAL)]
    return {"type": "sequence", "elements": [*lead, content]}


@dataclass(frozen=True)
class HarmonyCalls(CallSyntax):
    """How calls are forced, after the message of reasoning has ended; they are read as messages are."""

    @property
    def begins(self) -> tuple[str, ...]:
        return (f"{_CHANNEL}commentary to=",)

    @property
    def around(self) -> tuple[str, str]:
        return (f"{_START}assistant", "")

    @property
    def text(self) -> Format:
        return final({"type": "any_text"})

    def tag(self, tool: Tool) -> Format:
        begin = f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}"
        return {"type": "tag", "begin": begin, "content": tool.arguments(), "end": "<|call|>"}


@dataclass(frozen=True)
class Harmony(ResponseFormat):
    @property
    def markers(self) -> tuple[str, ...]:
        return (*_ENDS, _CONSTRAIN, _MESSAGE)

    @property
    def before_calls(self) -> ReasoningMarkers:
        return _ANALYSIS

    @property
    def without_reasoning(self) -> str:
        return _FINAL

    def answer(self, content: Format) -> Format:
        return final(content)

    def read(self, parser: ResponseParser) -> Wait:
        """Text before the first header is content: a template may have begun the message."""
        reader = parser.reader
        marker = yield from reader.until((_CHANNEL, _START), parser.content)
        while marker is not None:
            header = [marker]
            if (yield from reader.until((_MESSAGE,), header.append)) is None:
                return
            marker = yield from self._message("".join(header), parser)
            if marker not in (_CHANNEL, _START, None):
                marker = yield from reader.until((_CHANNEL, _START), parser.content)

    def _message(self, header: str, parser: ResponseParser) -> Generator[None, None, str | None]:
        addressed = _ADDRESSED.search(header)
        if addressed is not None and parser.tools:
            parser.begin(addressed["name"])
            marker = yield from parser.reader.until(_ENDS, parser.arguments)
        elif f"{_CHANNEL}analysis" in header:
            parser.begin_reasoning()
            marker = yield from parser.reader.until(_ENDS, parser.reasoning)
            parser.end_reasoning()
        else:
            marker = yield from parser.reader.until(_ENDS, parser.content)
        return marker


_ANALYSIS = ReasoningMarkers(f"{_CHANNEL}analysis{_MESSAGE}", "<|end|>", begun=True)
HARMONY = Harmony("openai", ReasoningMarkers(f"{_CHANNEL}analysis{_MESSAGE}", _FINAL, begun=True), HarmonyCalls())
"""Reasoning ends where the final message begins: what lies between are headers."""
