"""Prompts of inputs with images, and of texts of models that were trained on messages: what the model's chat template
writes of them, or the one prompt that the model has for an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tessera.errors import RequestError
from tessera.media.placement import placed, replacements_of
from tessera.server.generation.chat import ChatFields, ChatMessage, ContentPart
from tessera.server.generation.prompt import TokenizedPrompt, media_of, render
from tessera.server.generation.tools import ToolUse
from tessera.server.pooling.request import PoolingRequest

TEXT, IMAGE = "text", "image_url"


class MixedParts(NamedTuple):
    """Texts and images that are one input, in order."""

    parts: Sequence[ContentPart]

    @property
    def num_chars(self) -> int:
        """Of its texts."""
        return sum(len(part.text or "") for part in self.parts)


async def chat_prompt(request: PoolingRequest, messages: Sequence[ChatMessage], **how: Any) -> TokenizedPrompt:
    """A chat as its template writes it. how: further fields of ChatFields. Raises RequestError, TextWorkerError,
    MediaWorkerError."""
    cut = request.cut
    chat = ChatFields(
        messages=[*messages],
        truncate_prompt_tokens=None if cut.side is None else cut.max_tokens,
        truncation_side=cut.side,
        **how,
    )
    settings, model = request.context.settings, request.model
    rendered = await render(settings, model, chat, ToolUse(model.format), client=request.owner.client)
    return rendered.prompt


async def mixed_prompt(
    request: PoolingRequest, place: str, content: str | MixedParts, instruction: str
) -> TokenizedPrompt:
    """An input as a user's message, behind the model's instruction as one of the system; an image as the model's own
    prompt of it, where it has one. place: what errors call the input. Raises as chat_prompt()."""
    parts = [ContentPart(TEXT, text=content)] if isinstance(content, str) else [*content.parts]
    _check_parts(request, place, parts)
    try:
        if request.pooler.image_prompt:
            return await _image_prompt(request, parts)
        messages = [ChatMessage("user", parts)]
        if instruction:
            messages.insert(0, ChatMessage("system", [ContentPart(TEXT, text=instruction)]))
        options = dict(request.pooler.message or {})
        asks = options.pop("add_generation_prompt", False)
        return await chat_prompt(request, messages, add_generation_prompt=asks, chat_template_kwargs=options)
    except RequestError as error:
        raise type(error)(f"{place}: {error.message}", param=place, code=error.code) from error


async def _image_prompt(request: PoolingRequest, parts: Sequence[ContentPart]) -> TokenizedPrompt:
    """Raises as chat_prompt()."""
    if [part.type for part in parts] != [IMAGE]:
        raise RequestError("This model takes a text or an image, and none beside another.")
    model, client = request.model, request.owner.client
    assert model.media is not None, "it has been checked that the model takes images"
    if model.text is None:
        raise RequestError("This server has no tokenizer: send token ids.")
    media, ready = await model.media.read(media_of(parts), client), await model.media.ready()
    (ids,) = await model.text.encode(
        [request.pooler.image_prompt],
        request.pooler.image_special_tokens,
        max_tokens=model.engine.info.max_model_len,
        placeholders=ready.placeholders,
        replacements=replacements_of(media, ready),
        owner=client,
    )
    return TokenizedPrompt(ids, media=placed(ids, media, ready))


def _check_parts(request: PoolingRequest, place: str, parts: Sequence[ContentPart]) -> None:
    """Raises RequestError for what is neither text nor an image that the model takes."""
    media = request.model.media
    for part in parts:
        if part.type not in (TEXT, IMAGE):
            raise RequestError(f"{place} has a part of another type than {TEXT} and {IMAGE}.", param=place)
        if part.type == IMAGE and (media is None or "image" not in media.modalities):
            raise RequestError(f"{place}: this model takes no images.", param=place)
