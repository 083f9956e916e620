"""`truncation: auto` of the Responses API: what came first is dropped until the input fits in the model's context.

What may be dropped is a matter of the conversation's form, since chat templates refuse some and models misread others:
instructions and messages of system or developer stay, and so do the last message of the user and the last item; up to
that message whole turns are dropped, each from a message of the user to the next; after it, items are, but never a call
without its output or an output without its call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from starlette.types import Scope

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.generation.chat import ChatFields
from tessera.server.generation.items import CALLS, OUTPUTS, Item
from tessera.server.generation.run import count_tokens
from tessera.server.responses.protocol import InputTokensRequest
from tessera.server.responses.turns import messages_with

_TOO_LONG = "context_length_exceeded"
_STAY = ("system", "developer")


def cuts_of(items: Sequence[Item]) -> list[int]:
    """The places before which what may be dropped can be, in ascending order."""
    user, reached = _last_user(items), len(items)
    called = {item.get("call_id"): index for index, item in enumerate(items) if item["type"] in CALLS}
    cuts = []
    for index in range(len(items) - 1, 0, -1):
        item = items[index]
        # What comes from here on reaches back to the calls of its outputs.
        reached = min(reached, called.get(item.get("call_id"), index) if item["type"] in OUTPUTS else index)
        if reached == index and (index > user or _role(item) == "user"):
            cuts.append(index)
    return cuts[::-1]


def kept_of(items: Sequence[Item], cut: int) -> list[Item]:
    """The items without those before a cut that may be dropped."""
    user = _last_user(items)
    return [item for index, item in enumerate(items) if index >= cut or index == user or _role(item) in _STAY]


def _last_user(items: Sequence[Item]) -> int:
    return max((index for index, item in enumerate(items) if _role(item) == "user"), default=-1)


def _role(item: Item) -> str | None:
    return item.get("role") if item["type"] == "message" else None


async def fitted(
    context: ServerContext,
    request: InputTokensRequest,
    chat: ChatFields,
    items: Sequence[Item],
    scope: Scope,
    names: Mapping[str, str],
) -> ChatFields:
    """The chat without what must be dropped for the prompt and the answer to fit in the context. chat: of all items.
    scope, names: as of count_tokens(). Prompts are rendered as often as it takes to bisect the places to cut. Raises
    RequestError if no cut is enough, NotFoundError, TextWorkerError."""
    if request.truncation != "auto":
        return chat
    answer = context.settings.answers.capped(chat.max_tokens) or 1
    room = context.model(chat.model).engine.info.max_model_len - answer

    def without(cut: int) -> ChatFields:
        return msgspec.structs.replace(chat, messages=messages_with(request.instructions, kept_of(items, cut)))

    async def fits(cut: int) -> bool:
        try:
            return await count_tokens(context, without(cut), scope, names) <= room
        except RequestError as error:
            if error.code != _TOO_LONG:
                raise
            return False

    cuts = [0, *cuts_of(items)]
    if await fits(0):
        return chat
    low, high = 1, len(cuts)
    while low < high:
        middle = (low + high) // 2
        if await fits(cuts[middle]):
            high = middle
        else:
            low = middle + 1
    if low == len(cuts):
        raise RequestError(
            f"This model's maximum context length is {room + answer} tokens. The input does not fit in it beside an "
            f"answer of {answer}, even without what may be dropped: instructions, the last message of the user and the "
            "last item stay.",
            param="input",
            code=_TOO_LONG,
        )
    return without(cuts[low])
