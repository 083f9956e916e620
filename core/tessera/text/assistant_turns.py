"""Brings what the assistant has said before into the form that a template takes.

In OpenAI's API a message that only calls tools has a content of null, and the arguments of calls are JSON text. Some
templates join that content to other text, or show calls only beside a null, and a few join the arguments too, where
most expect an object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tessera.errors import RequestError
from tessera.parsing.values import arguments_of
from tessera.text.arrangement import Messages
from tessera.text.conversation import ContentForm, plain_value

Fields = dict[str, Any]
Render = Callable[[Messages, list[dict[str, Any]] | None], str]
_ASSISTANT, _CONTENT, _CALLS = "assistant", "content", "tool_calls"
_NAME, _KEY, _VALUE = "tessera_tool", "tessera_probe", "tessera value"
_CALL_ID = "probe1234"
"""Mistral's templates want nine letters and digits."""
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]}
_TOOL = {"type": "function", "function": {"name": "other", "description": "a", "parameters": _PARAMETERS}}
_THOUGHT = {"thinking": "b", "reasoning": "b", "reasoning_content": "b"}


class AssistantTurns:
    """What one template takes in messages of the assistant, which is tried when a chat first needs to know it.

    render: messages, with tools or without; "" if the template refuses them. form: of content.
    """

    def __init__(self, render: Render, form: ContentForm) -> None:
        self._render = render
        self._empty: Any = [] if form == "parts" else ""
        self._silent: dict[tuple[bool, bool], Sequence[Fields]] = {}

    def adapt(self, messages: Messages) -> Messages:
        """The chat with the arguments of calls as the template takes them, and with the content that it takes where
        there is none."""
        return [self._formed(each) if each["role"] == _ASSISTANT else each for each in messages]

    def _formed(self, message: dict[str, Any]) -> dict[str, Any]:
        formed = dict(message)
        calls = bool(message.get(_CALLS))
        if calls:
            form = _as_text if self._takes_text else _as_object
            formed[_CALLS] = [form(call) for call in message[_CALLS]]
        if not message.get(_CONTENT) and (calls or _CONTENT not in message):
            own = {name: message[name] for name in (_CONTENT,) if name in message}
            best = self._best(calls, "reasoning_content" in message)
            if own not in best:  # which may be an empty text beside calls
                formed.pop(_CONTENT, None)
                formed |= best[0]
        return formed

    @cached_property
    def _takes_text(self) -> bool:
        """Whether the template wants arguments as text. One that prints an object shows Python's quotes."""
        shown = self._prompts_with({_KEY: _VALUE})
        if any(_KEY in text and repr(_KEY) not in text for text in shown):
            return False
        arguments = json.dumps({_KEY: _VALUE})
        return any(arguments in text for text in self._prompts_with(arguments))

    def _prompts_with(self, arguments: Any) -> list[str]:
        return [self._prompt(_history({**content, _CALLS: [_call(arguments)]})) for content in self._contents(True)]

    def _contents(self, calls: bool) -> Sequence[Fields]:
        """The ways to say nothing, as fields of a message. A null is left out, as transformers does; but some templates
        show calls only beside it."""
        return ({}, {_CONTENT: self._empty}, *([{_CONTENT: None}] if calls else []))

    def _best(self, calls: bool, reasoning: bool) -> Sequence[Fields]:
        """The contents with which the template takes a message that says nothing: first none at all if that will do,
        and then those that make the shortest prompt. Templates look at the content, or do not, by what else there
        is."""
        kind = calls, reasoning
        if kind not in self._silent:
            said: Fields = dict(_THOUGHT) if reasoning else {}
            if calls:
                arguments: Any = {_KEY: _VALUE}
                said[_CALLS] = [_call(json.dumps(arguments) if self._takes_text else arguments)]
            tried = [(content, *self._tried({**said, **content})) for content in self._contents(calls)]
            most = max(worth for _, worth, _ in tried)
            fit = sorted((bool(content), size, n) for n, (content, worth, size) in enumerate(tried) if worth == most)
            self._silent[kind] = [tried[n][0] for _, _, n in fit]
        return self._silent[kind]

    def _tried(self, message: Fields) -> tuple[int, int]:
        """In how many chats the template takes this message, with those counted twice in which its calls are in the
        prompt; and the length of the prompts."""
        shown = [self._prompt(_history(message, *later)) for later in ((), (_ANSWER, _USER))]
        return sum(bool(text) + (_NAME in text) for text in shown), sum(map(len, shown))

    def _prompt(self, messages: Messages) -> str:
        """Some templates are only for chats with tools."""
        return self._render(messages, None) or self._render(messages, [_TOOL])


_USER = {"role": "user", _CONTENT: "a"}
_ANSWER = {"role": _ASSISTANT, _CONTENT: "d"}


def _history(message: Fields, *later: Fields) -> Messages:
    """A chat with this message of the assistant. later: after the answer to it."""
    result = {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, _CONTENT: "c"}
    return [_USER, {"role": _ASSISTANT, **message}, result if _CALLS in message else _USER, *later]


def _call(arguments: Any) -> dict[str, Any]:
    return {"id": _CALL_ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}


# ---- arguments -------------------------------------------------------------------------------------------------------


def _as_object(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"].get("arguments")
    return _with_arguments(call, _parsed(arguments) if isinstance(arguments, str) else arguments or {})


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    """As it was written, if it is a text."""
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return _with_arguments(call, arguments or "{}")


def _with_arguments(call: dict[str, Any], arguments: Any) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _parsed(text: str) -> dict[str, Any]:
    """What is no JSON object, because a model wrote it, is kept as an argument: a chat must not end for it."""
    arguments = arguments_of(text)
    try:
        plain_value(arguments, "messages")
    except RequestError:
        return {"arguments": text}
    return arguments
