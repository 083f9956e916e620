"""What a request wants numbers of: texts, token ids, pairs of texts, images and chats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from tessera.config.pooler import PoolerConfig
from tessera.engine.pooling import around
from tessera.errors import RequestError
from tessera.media.placed import PlacedMedia
from tessera.server.decode import LONG_BODY, decoded
from tessera.server.generation.chat import ChatMessage, ContentPart, ImageUrl
from tessera.server.pooling.fields import InputFields, InputItem
from tessera.server.pooling.mixed import IMAGE, TEXT, MixedParts, chat_prompt
from tessera.server.pooling.request import PoolingRequest
from tessera.server.prompt_field import PromptField, Prompts
from tessera.server.settings import Limits
from tessera.text_pair import TextPair

QUERY = ("query", "search_query")
DOCUMENT = ("document", "search_document", "passage", "corpus")
"""What models call their instructions for queries, and for what is searched."""
_ITEMS = msgspec.json.Decoder(list[str | InputItem])


class PooledInput(NamedTuple):
    """One text, pair or list of token ids, or texts and images together."""

    # What errors call it, as `input[3]`.
    place: str
    value: str | Sequence[int] | TextPair | MixedParts
    # What stands in front of a text for the model, as its files say; "" for nothing.
    instruction: str = ""
    # Of token ids, the images and the like that some of them stand for, in order of their places.
    media: Sequence[PlacedMedia] = ()


async def read_inputs(request: PoolingRequest, fields: InputFields) -> list[PooledInput]:
    """Raises RequestError, TextWorkerError, MediaWorkerError."""
    raw = fields.input
    has_input = not isinstance(raw, UnsetType) and bytes(raw) != b"null"
    if has_input == (fields.messages is not None):
        raise RequestError("Send either input or messages.", param="input")
    if isinstance(raw, UnsetType) or fields.messages is not None:
        if not request.pooler.image_prompt:
            return [await _chat_input(request, fields)]
        return with_instruction(request, [_only_message(fields.messages or ())], fields.prompt_name)
    field = PromptField("input", request.context.settings.limits.pooled_inputs, "inputs")
    if field.holds_objects(raw):
        inputs = await _items(request, field.name, raw)
    else:
        inputs = listed(field.name, await field.read(raw, request.context.assembly))
    return with_instruction(request, inputs, fields.prompt_name)


def listed(name: str, prompts: Prompts) -> list[PooledInput]:
    """name: of the field."""
    values: Sequence[str | Sequence[int]] = prompts.texts or prompts.ids
    return [PooledInput(prompts.place(name, index), value) for index, value in enumerate(values)]


def listed_items(name: str, items: Sequence[str | InputItem], limits: Limits) -> list[PooledInput]:
    """name: of the list. Raises RequestError for one that is empty or too long."""
    if not 1 <= len(items) <= limits.pooled_inputs:
        raise RequestError(f"{name} must have 1 to {limits.pooled_inputs} texts, got {len(items)}.", param=name)
    return [item_input(f"{name}[{index}]", item) for index, item in enumerate(items)]


def item_input(place: str, item: str | InputItem) -> PooledInput:
    """Raises RequestError for an item that is neither a text nor an image."""
    if isinstance(item, str):
        return PooledInput(place, item)
    parts = item.content or []
    if item.image is not None:
        parts = [*parts, ContentPart(IMAGE, image_url=ImageUrl(item.image))]
    if item.text is not None:
        parts = [*parts, ContentPart(TEXT, text=item.text)]
    if not parts or (item.content is not None and len(parts) > len(item.content)):
        raise RequestError(f"{place} must have a text, an image or both, or content in their place.", param=place)
    for number, part in enumerate(parts):
        if part.type == TEXT and part.text is None:
            raise RequestError(f"{place}.content[{number}].text is missing.", param=place)
    if all(part.type == TEXT for part in parts):
        return PooledInput(place, "\n".join(part.text or "" for part in parts))
    return PooledInput(place, MixedParts(parts))


def with_instruction(request: PoolingRequest, inputs: Sequence[PooledInput], name: str | None) -> list[PooledInput]:
    """The texts with the model's instruction of this name in front, or its default one if that is None; token ids and
    pairs stay as they are. Raises RequestError for a name that the model does not have."""
    prompts = request.pooler.prompts
    name = request.pooler.default_prompt if name is None else name
    if name is not None and name not in prompts:
        has = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
        raise RequestError(f"prompt_name must be that of one of the model's prompts; {has}.", param="prompt_name")
    instruction = "" if name is None else prompts[name]
    return [_instructed(one, instruction, request.pooler) for one in inputs]


def _instructed(pooled: PooledInput, instruction: str, pooler: PoolerConfig) -> PooledInput:
    """An empty text stays as it is, to be refused."""
    if isinstance(pooled.value, MixedParts) or (pooler.message is not None and isinstance(pooled.value, str)):
        return pooled._replace(instruction=instruction)
    if isinstance(pooled.value, str) and pooled.value:
        return pooled._replace(value=around(pooled.value, instruction, pooler), instruction=instruction)
    return pooled


def known_instruction(request: PoolingRequest, names: Sequence[str]) -> str | None:
    """The first of these names that the model has an instruction for; None if there is none."""
    return next((name for name in names if name in request.pooler.prompts), None)


def search_instructions(request: PoolingRequest) -> tuple[str | None, str | None]:
    """The names of the model's instructions for queries and for what is searched, where it has any."""
    return known_instruction(request, QUERY), known_instruction(request, DOCUMENT)


async def _items(request: PoolingRequest, name: str, raw: msgspec.Raw) -> list[PooledInput]:
    """Raises RequestError."""
    decode = partial(decoded, _ITEMS, bytes(raw), name)
    items = await request.context.assembly.run(decode) if len(memoryview(raw)) >= LONG_BODY else decode()
    return listed_items(name, items, request.context.settings.limits)


def _only_message(messages: Sequence[ChatMessage]) -> PooledInput:
    """Of a model that reads a text or an image by itself. Raises RequestError."""
    content = messages[0].content if len(messages) == 1 else None
    if content is None:
        raise RequestError("This model takes one message, of a text or an image.", param="messages")
    return item_input("messages", content if isinstance(content, str) else InputItem(content=content))


async def _chat_input(request: PoolingRequest, fields: InputFields) -> PooledInput:
    """The chat as its template writes it, which by default asks for no answer."""
    assert fields.messages is not None
    prompt = await chat_prompt(
        request,
        fields.messages,
        add_generation_prompt=bool(fields.add_generation_prompt),
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_special_tokens=fields.add_special_tokens,
    )
    return PooledInput("messages", prompt.token_ids, media=prompt.media)
