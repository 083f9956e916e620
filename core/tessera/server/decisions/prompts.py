"""The prompts of questions: a chat that each of them ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera.arrays import Array, int32
from tessera.errors import RequestError
from tessera.server.generation.chat import ChatFields, ChatMessage
from tessera.server.generation.prompt import render
from tessera.server.generation.tools import ToolUse
from tessera.server.served_model import ServedModel
from tessera.server.settings import ServerSettings

MAX_TOKENS = 2**22
"""Of the prompts of all questions together."""


async def question_prompts(
    settings: ServerSettings,
    model: ServedModel,
    chat: ChatFields,
    questions: Sequence[str],
    client: str,
) -> list[Array]:
    """[tokens] int32 of each question. Raises RequestError, TextWorkerError."""
    prompts, tokens = [], 0
    for question in questions:
        prompts.append(int32(await _prompt(settings, model, chat, question, client)))
        tokens += len(prompts[-1])
        if tokens > MAX_TOKENS:
            raise RequestError(
                f"What the questions are about, counted once for each of them, must have at most {MAX_TOKENS} tokens.",
                param="questions",
            )
    return prompts


async def _prompt(
    settings: ServerSettings,
    model: ServedModel,
    chat: ChatFields,
    question: str,
    client: str,
) -> list[int]:
    """The question is part of the last message if that is the user's: some templates take no two in a row. Reasoning,
    if the template begins it, is ended at once."""
    *before, last = chat.messages
    if last.role == "user":
        asked = [*before, msgspec.structs.replace(last, content=f"{_text(last)}\n\n{question}")]
    else:
        asked = [*chat.messages, ChatMessage("user", question)]
    chat = msgspec.structs.replace(chat, messages=asked)
    rendered = await render(settings, model, chat, ToolUse(model.format), client=client)
    ids = list(rendered.prompt.token_ids)
    if rendered.reasons:
        assert model.format is not None
        assert model.text is not None
        (end,) = await model.text.encode([model.format.without_reasoning], False, owner=client)
        ids += end
    return ids


def _text(message: ChatMessage) -> str:
    parts = message.content or ""
    return parts if isinstance(parts, str) else "\n".join(part.text or "" for part in parts)
