"""Brings a chat into an order that its template takes.

OpenAI's and Anthropic's APIs allow several system messages, system messages after others, and users who speak twice,
and agents send all three. Some templates refuse them, and some leave them out of the prompt without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from tessera.text.conversation import ContentForm

Messages = list[dict[str, Any]]
_FIRST, _SECOND = "tessera first probe", "tessera second probe"


class Arrangement:
    """What one template takes, which is tried when a chat first needs to know it, and the chats so arranged.

    render: messages; "" if the template refuses them. form: of content.
    """

    def __init__(self, render: Callable[[Messages], str], form: ContentForm) -> None:
        self._render = render
        self._form = form

    def arrange(self, messages: Messages) -> Messages:
        """The chat with as little changed as the template needs. System messages in the beginning become one; one that
        comes later becomes a user's, in <system> tags; what a user says at once becomes one message."""
        leading = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
        rest = messages[leading:]
        if any(each["role"] == "system" for each in rest) and not self._takes_later_systems:
            rest = [self._as_user(each) if each["role"] == "system" else each for each in rest]
        if _repeats(rest, "user") and not self._takes_users:
            rest = _joined(rest, "user")
        first = messages[:leading]
        if leading > 1 and not self._takes_systems:
            first = _joined(first, "system")
        return [*first, *rest]

    @cached_property
    def _takes_systems(self) -> bool:
        return self._takes(("system", _FIRST), ("system", _SECOND), ("user", "a"))

    @cached_property
    def _takes_later_systems(self) -> bool:
        return self._takes(("system", "a"), ("user", _FIRST), ("system", _SECOND), ("assistant", "b"), ("user", "c"))

    @cached_property
    def _takes_users(self) -> bool:
        return self._takes(("user", _FIRST), ("user", _SECOND))

    def _takes(self, *turns: tuple[str, str]) -> bool:
        """Whether both probes are in the prompt."""
        text = self._render([{"role": role, "content": self._content(content)} for role, content in turns])
        return _FIRST in text and _SECOND in text

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._form == "parts" else text

    def _as_user(self, message: Mapping[str, Any]) -> dict[str, Any]:
        begin, end = self._content("<system>\n"), self._content("\n</system>")
        content = message.get("content", self._content(""))
        if isinstance(content, list) and self._form != "parts":
            begin, end = [{"type": "text", "text": begin}], [{"type": "text", "text": end}]
        return {**message, "role": "user", "content": begin + content + end}


def _repeats(messages: Sequence[Mapping[str, Any]], role: str) -> bool:
    return any(one["role"] == other["role"] == role for one, other in pairwise(messages))


def _joined(messages: Sequence[dict[str, Any]], role: str) -> Messages:
    """Messages of the role that follow one another are one, with an empty line between them."""
    joined: Messages = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == role:
            joined[-1] = {**joined[-1], "content": _both(joined[-1].get("content", ""), message.get("content", ""))}
        else:
            joined.append(message)
    return joined


def _both(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), {"type": "text", "text": "\n\n"}, *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
