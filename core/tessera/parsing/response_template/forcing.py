"""What a grammar demands of answers that a response_template reads.

A template says how answers are read, not how they are written. So a way of writing is taken, the family's that the chat
template is recognised by or else the one that the template's own markers suggest, and tried: only if the template reads
a sample of it as what it means is it used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.parsing.calls import CallSyntax, Format, Tool
from tessera.parsing.forced import forced_calls
from tessera.parsing.response import Message, ReasoningMarkers, ResponseFormat, ResponseParser
from tessera.parsing.response_template.reading import TemplateFormat
from tessera.parsing.response_template.spec import Field, Template, load

NAME = "response_template"
_SAMPLES = (Tool("first"), Tool("second", {"type": "object", "properties": {"text": {"type": "string"}}}))


@dataclass(frozen=True)
class TemplateCalls(CallSyntax):
    """Calls as JSON objects between the template's own markers, alone or in a list. begin, end: "" if only patterns
    say. keys: of the name and the arguments."""

    begin: str
    end: str
    keys: tuple[str, str]
    listed: bool = False

    @property
    def separator(self) -> str:  # type: ignore[override]
        return ", " if self.listed else ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def around(self) -> tuple[str, str]:
        return (f"{self.begin}[", f"]{self.end}") if self.listed else ("", "")

    def tag(self, tool: Tool) -> Format:
        begin, end = ("", "") if self.listed else (self.begin, self.end)
        name, arguments = map(json.dumps, self.keys)
        head = f"{begin}{{{name}: {json.dumps(tool.name)}, {arguments}: "
        return {"type": "tag", "begin": head, "content": tool.arguments(), "end": f"}}{end}"}


def template_format(source: str, family: ResponseFormat | None, special: Sequence[str]) -> TemplateFormat:
    """The format that a response_template is. source: its JSON. family: what the chat template is recognised by.
    special: the texts of the model's special tokens. Raises ModelError."""
    template = load(source)
    needed = template.special(special)
    own = TemplateFormat(NAME, _markers(template), _calls(template), template=template, special=needed)
    if family is not None:
        reasoning = None if template.reasoning is None else family.reasoning or own.reasoning
        calls = None if template.calls is None else family.calls
        taken = replace(own, reasoning=reasoning, calls=calls, family=family)
        if _reads_what_it_forces(taken):
            return taken
    return replace(own, forces=_reads_what_it_forces(own))


def _markers(template: Template) -> ReasoningMarkers | None:
    begin, end = ("", "") if template.reasoning is None else template.reasoning.literals
    return ReasoningMarkers(begin, end) if begin and end else None


def _calls(template: Template) -> TemplateCalls | None:
    found = template.calls
    return None if found is None else TemplateCalls(*found.literals, _keys(found), listed=found.each)


def _keys(calls: Field) -> tuple[str, str]:
    """Where the transform takes a call's name and its arguments from."""
    function = calls.transform.get("function", calls.transform) if isinstance(calls.transform, dict) else None
    if not isinstance(function, dict):
        return ("name", "arguments")
    name, arguments = (str(function.get(key)).strip("{}").removeprefix("content.") for key in ("name", "arguments"))
    return name, arguments


def _reads_what_it_forces(response_format: TemplateFormat) -> bool:
    """Whether the template reads reasoning, text and calls out of what a grammar would demand."""
    if response_format.reasons != (response_format.reasoning is not None) or (
        response_format.template.calls is None
    ) != (response_format.calls is None):
        return False
    thought, reasoning = "", ""
    if response_format.before_calls is not None:
        reasoning = "because"
        thought = f"{response_format.before_calls.begin}{reasoning}{response_format.before_calls.end}"
    text = thought + _sample(response_format.answer({"type": "const_string", "value": "so"}))
    if _read(response_format, text) != Message("so", reasoning):
        return False
    if response_format.calls is None:
        return True
    forced = forced_calls(response_format.calls, _SAMPLES, required=True, parallel=True)
    message = _read(response_format, thought + _sample(forced))
    right = [call.name for call in message.calls] == [tool.name for tool in _SAMPLES]
    return right and (message.content.strip(), message.reasoning) == ("", reasoning)


def _read(response_format: TemplateFormat, text: str) -> Message:
    parser = ResponseParser(response_format, _SAMPLES)
    return Message.from_events([*parser.feed(text), *parser.finish()])


def _sample(form: Any) -> str:
    """A text of a format of structural tags, as the ways of writing calls use them."""
    match form:
        case {"type": "tag", "begin": begin, "content": content, "end": end}:
            return f"{begin}{_sample(content)}{end}"
        case {"type": "sequence", "elements": elements}:
            return "".join(map(_sample, elements))
        case {"type": "tags_with_separator", "tags": tags, "separator": separator}:
            return str(separator).join(map(_sample, tags))
        case {"type": "or", "elements": [first, *_]}:
            return _sample(first)
        case {"type": "const_string", "value": value}:
            return str(value)
        case {"type": "json_schema"}:
            return "{}"
    return ""
