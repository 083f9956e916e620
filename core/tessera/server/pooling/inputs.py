"""What a request wants numbers of: texts, token ids, pairs of texts and chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UnsetType

from tessera.errors import RequestError
from tessera.server.generation.chat import ChatFields
from tessera.server.generation.prompt import render
from tessera.server.generation.tools import ToolUse
from tessera.server.pooling.fields import InputFields
from tessera.server.pooling.request import PoolingRequest
from tessera.server.prompt_field import PromptField, Prompts
from tessera.server.settings import Limits
from tessera.text_pair import TextPair

QUERY = ("query", "search_query")
DOCUMENT = ("document", "search_document", "passage", "corpus")
"""What models call their instructions for queries, and for what is searched."""


class PooledInput(NamedTuple):
    """One text, pair or list of token ids."""

    # What errors call it, as `input[3]`.
    place: str
    value: str | Sequence[int] | TextPair
    # What stands in front of a text for the model, as its files say; "" for nothing.
    instruction: str = ""


async def read_inputs(request: PoolingRequest, fields: InputFields) -> list[PooledInput]:
    """Raises RequestError, TextWorkerError."""
    raw = fields.input
    has_input = not isinstance(raw, UnsetType) and bytes(raw) != b"null"
    if has_input == (fields.messages is not None):
        raise RequestError("Send either input or messages.", param="input")
    if isinstance(raw, UnsetType) or fields.messages is not None:
        return [await _chat_input(request, fields)]
    field = PromptField("input", request.context.settings.limits.pooled_inputs, "inputs")
    prompts = await field.read(raw, request.context.assembly)
    return with_instruction(request, listed(field.name, prompts), fields.prompt_name)


def listed(name: str, prompts: Prompts) -> list[PooledInput]:
    """name: of the field."""
    values: Sequence[str | Sequence[int]] = prompts.texts or prompts.ids
    return [PooledInput(prompts.place(name, index), value) for index, value in enumerate(values)]


def listed_texts(name: str, texts: Sequence[str], limits: Limits) -> list[PooledInput]:
    """name: of the list. Raises RequestError for one that is empty or too long."""
    if not 1 <= len(texts) <= limits.pooled_inputs:
        raise RequestError(f"{name} must have 1 to {limits.pooled_inputs} texts, got {len(texts)}.", param=name)
    return [PooledInput(f"{name}[{index}]", text) for index, text in enumerate(texts)]


def with_instruction(request: PoolingRequest, inputs: Sequence[PooledInput], name: str | None) -> list[PooledInput]:
    """The texts with the model's instruction of this name in front, or its default one if that is None; token ids and
    pairs stay as they are. Raises RequestError for a name that the model does not have."""
    prompts = request.pooler.prompts
    name = request.pooler.default_prompt if name is None else name
    if name is None:
        return list(inputs)
    if name not in prompts:
        has = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
        raise RequestError(f"prompt_name must be that of one of the model's prompts; {has}.", param="prompt_name")
    text = prompts[name]
    return [
        one._replace(value=text + one.value, instruction=text) if isinstance(one.value, str) else one for one in inputs
    ]


def known_instruction(request: PoolingRequest, names: Sequence[str]) -> str | None:
    """The first of these names that the model has an instruction for; None if there is none."""
    return next((name for name in names if name in request.pooler.prompts), None)


def search_instructions(request: PoolingRequest) -> tuple[str | None, str | None]:
    """The names of the model's instructions for queries and for what is searched, where it has any."""
    return known_instruction(request, QUERY), known_instruction(request, DOCUMENT)


async def _chat_input(request: PoolingRequest, fields: InputFields) -> PooledInput:
    """The chat as its template writes it, which by default asks for no answer."""
    assert fields.messages is not None
    cut = request.cut
    chat = ChatFields(
        messages=fields.messages,
        add_generation_prompt=bool(fields.add_generation_prompt),
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_special_tokens=fields.add_special_tokens,
        truncate_prompt_tokens=None if cut.side is None else cut.max_tokens,
        truncation_side=cut.side,
    )
    settings, model = request.context.settings, request.model
    rendered = await render(settings, model, chat, ToolUse(model.format), client=request.owner.client)
    return PooledInput("messages", rendered.prompt.token_ids)
