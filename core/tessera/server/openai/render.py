"""POST /v1/completions/render and /v1/chat/completions/render: what the model would be given, without an answer.
Routers look prompts up by these token ids; the fields are vLLM's
(https://docs.vllm.ai/en/latest/serving/online_serving/renderer/)."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tessera.engine.input_processor import Prompt
from tessera.sampling_params import INTEGERS, NUMBERS, SamplingParams
from tessera.server.context import ServerContext
from tessera.server.generation.prepare import Identity
from tessera.server.generation.run import ChatRun
from tessera.server.http import json_response, read_body, unless_gone
from tessera.server.openai import chat, completions
from tessera.server.openai.protocol import ChatCompletionRequest, CompletionRequest
from tessera.server.openapi import JsonRoute

_DEFAULTS = SamplingParams()
_PLAIN_PARAMS = (*INTEGERS, *NUMBERS, "stop", "stop_token_ids", "ignore_eos")
"""The sampling parameters that are numbers, texts and switches."""


class MediaPlace(msgspec.Struct):
    """Where an image, a video or a sound stands in the token ids."""

    offset: int
    length: int


class MediaFeatures(msgspec.Struct):
    """The images, videos and sounds of a prompt, by modality and in order. mm_hashes: equal only for equal contents,
    as in the extra keys of KV events."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[MediaPlace]]


class RenderedPrompt(msgspec.Struct):
    """sampling_params: those that differ from vLLM's defaults."""

    request_id: str
    token_ids: list[int]
    features: MediaFeatures | None
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    cache_salt: str | None
    priority: int


def routes(context: ServerContext) -> list[JsonRoute]:
    chat_decoder, completion_decoder = chat.request_decoder(context), completions.request_decoder(context)

    async def rendered_chat(body: bytes, request: Request) -> RenderedPrompt:
        asked = await chat_decoder.decode(body)
        run = (await ChatRun.prepare(context, asked, request.scope, chat.PREFIX)).generation
        return _rendered(asked, run.identity, run.identity.id, run.prompts[0])

    async def rendered_prompts(body: bytes, request: Request) -> list[RenderedPrompt]:
        asked = await completion_decoder.decode(body)
        prepared = await completions.prepare_completion(context, asked, request.scope)
        identity = prepared.identity
        return [
            _rendered(asked, identity, f"{identity.id}-{index}", prompt)
            for index, prompt in enumerate(prepared.prompts)
        ]

    async def render_chat(request: Request) -> Response:
        body = await read_body(request.receive)
        return json_response(await unless_gone(request.receive, rendered_chat(body, request)))

    async def render_prompts(request: Request) -> Response:
        body = await read_body(request.receive)
        return json_response(await unless_gone(request.receive, rendered_prompts(body, request)))

    return [
        JsonRoute(
            "/v1/chat/completions/render",
            render_chat,
            "The token ids of a chat, without an answer.",
            methods=("POST",),
            body=ChatCompletionRequest,
            answer=RenderedPrompt,
        ),
        JsonRoute(
            "/v1/completions/render",
            render_prompts,
            "The token ids of each prompt, without an answer.",
            methods=("POST",),
            body=CompletionRequest,
            answer=list[RenderedPrompt],
        ),
    ]


def _rendered(
    request: ChatCompletionRequest | CompletionRequest, identity: Identity, name: str, prompt: Prompt
) -> RenderedPrompt:
    shown = {field: getattr(prompt.params, field) for field in _PLAIN_PARAMS}
    sampling = {field: value for field, value in shown.items() if value != getattr(_DEFAULTS, field)}
    return RenderedPrompt(
        request_id=name,
        token_ids=prompt.ids.tolist(),
        features=_features(prompt),
        sampling_params={**sampling, "max_tokens": prompt.max_tokens},
        model=identity.model,
        stream=bool(request.stream),
        cache_salt=request.cache_salt,
        priority=request.priority or 0,
    )


def _features(prompt: Prompt) -> MediaFeatures | None:
    if not prompt.media:
        return None
    features = MediaFeatures({}, {})
    for media in prompt.media:
        features.mm_hashes.setdefault(media.modality, []).append(media.digest.hex())
        place = MediaPlace(media.start, media.end - media.start)
        features.mm_placeholders.setdefault(media.modality, []).append(place)
    return features
