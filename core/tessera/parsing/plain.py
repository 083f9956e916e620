"""Calls of models whose own way of writing them is not known: JSON objects with a name and arguments, as the whole
answer. The model is told so (server/generation/tool_prompts.py), or a grammar demands it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.parsing.calls import Format, JsonCalls, Sink, Tool, either
from tessera.parsing.reader import Reader, Wait
from tessera.parsing.values import arguments_of

NAME = "json"
_FENCES: Mapping[str, str] = MappingProxyType({"```": "```", "<tool_call>": "</tool_call>"})


@dataclass(frozen=True)
class PlainCalls(JsonCalls):
    """One object, or a list of them. What names no tool is the answer itself: it may well be JSON."""

    begin: str = ""
    whole: bool = True
    named: bool = True

    @property
    def begins(self) -> tuple[str, ...]:
        return ()

    @property
    def fences(self) -> Mapping[str, str]:
        return _FENCES

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*_FENCES, *_FENCES.values())))

    def read(self, reader: Reader, begun: str, sink: Sink) -> Wait:
        if begun == "```":
            yield from reader.literal("json")
        yield from super().read(reader, begun, sink)

    @property
    def text(self) -> Format:
        first: Format = {"type": "regex", "pattern": r"[^\s{\[<`]"}
        return {"type": "sequence", "elements": [first, {"type": "any_text"}]}

    def tag(self, tool: Tool) -> Format:
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        return {"type": "tag", "begin": head, "content": tool.arguments(), "end": "}"}

    def several(self, tags: Sequence[Format], *, parallel: bool) -> Format:
        """One call ends the answer, unless the model has begun a list."""
        one = either(tags)
        if not parallel:
            return one
        listed = {"type": "tags_with_separator", "tags": list(tags), "separator": ", ", "at_least_one": True}
        return either([one, {"type": "tag", "begin": "[", "content": listed, "end": "]"}])


PLAIN = PlainCalls()

_TOOLS, _CALLS = re.compile(r"\btools\b"), re.compile(r"\btool_calls\b")
_SYSTEM_REFUSED = re.compile(r"raise_exception\([^)]*[Ss]ystem")


@dataclass(frozen=True)
class Telling:
    """What has to be said in words because a chat template does not say it. tools: which there are. calls: earlier
    calls and their results. system: whether the template takes a system message."""

    tools: bool
    calls: bool
    system: bool

    @classmethod
    def from_template(cls, template: str) -> Telling:
        tools, calls = (pattern.search(template) is None for pattern in (_TOOLS, _CALLS))
        return cls(tools, calls, system=_SYSTEM_REFUSED.search(template) is None)


def written(calls: Sequence[Mapping[str, Any]]) -> str:
    """Earlier calls, as the model would write them."""
    found = []
    for call in calls:
        function = call["function"]
        arguments = function.get("arguments")
        arguments = arguments_of(arguments) if isinstance(arguments, str) else arguments or {}
        found.append({"name": function.get("name"), "arguments": arguments})
    return json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False)
