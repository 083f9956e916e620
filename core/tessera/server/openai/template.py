"""A chat as a job of the text workers, for whoever is sent one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.openai.decode import Envelope
from tessera.server.openai.messages import check_counts, for_template
from tessera.server.openai.protocol import ChatMessage
from tessera.server.settings import Limits
from tessera.text.worker import ChatJob


class Chat(Protocol):
    """The fields of a request that say what becomes of its messages."""

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def check_sizes(envelope: Envelope, limits: Limits) -> None:
    """Raises RequestError. For an envelope with messages and chat_template_kwargs."""
    check_counts(envelope.raw("messages"), limits)
    if envelope.size("chat_template_kwargs") > limits.template_kwargs_bytes:
        most = limits.template_kwargs_bytes
        raise RequestError(f"chat_template_kwargs has at most {most} bytes of JSON.", param="chat_template_kwargs")


def chat_job(context: ServerContext, messages: Sequence[ChatMessage], chat: Chat) -> ChatJob:
    """Raises RequestError."""
    continues = bool(chat.continue_final_message)
    return ChatJob(
        for_template(messages),
        add_generation_prompt=not continues if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs={**context.settings.chat_template_kwargs, **(chat.chat_template_kwargs or {})},
        max_chars=context.settings.limits.prompt_chars,
        # The template has put the special tokens in.
        add_special_tokens=bool(chat.add_special_tokens),
    )
