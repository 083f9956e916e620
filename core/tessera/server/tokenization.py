"""POST /tokenize and /detokenize: from a text or a chat to token ids, and back to text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tessera.config.model_folder import read_json
from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decode import Envelope, RequestDecoder, Values
from tessera.server.generation.chat import ChatFields, ChatMessage, Effort, ToolChoice, ToolSpec
from tessera.server.generation.prompt import check_chat_sizes, check_efforts, prompt_job, show_media
from tessera.server.generation.tools import tool_use
from tessera.server.http import json_response, read_body, unless_gone
from tessera.server.openai.unserved_fields import CHAT
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.security import client_of
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits, ServerSettings
from tessera.text.worker import ChatJob, EncodeJob

if TYPE_CHECKING:
    from tessera.text.workers import TextWorkers

# Fields of vLLM's /tokenize and of chats that change a prompt and are not supported yet.
_NOT_SERVED: dict[str, Values] = {
    **{name: CHAT[name] for name in ("chat_template", "documents", "functions", "media_io_kwargs")},
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
}


class TokenizeRequest(msgspec.Struct):
    """A prompt, or the messages of a chat with those of its fields that its prompt depends on. null is the same as
    leaving a field out."""

    # A struct has one base, and that of ChatFields is GenerationFields: so the fields of chats are repeated here.
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolSpec], field_schema(maxItems=Limits.tools)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    verbosity: Effort | None = None

    def chat(self) -> ChatFields:
        """The chat whose prompt it is."""
        both = set(TokenizeRequest.__struct_fields__).intersection(ChatFields.__struct_fields__)
        return ChatFields(**{name: getattr(self, name) for name in both})


class TokenizeAnswer(msgspec.Struct):
    """token_strs: the tokens as the vocabulary spells them, if return_token_strs is true."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class _TokenizeAnswer(msgspec.Struct):
    """A TokenizeAnswer whose lists are JSON already."""

    count: int
    max_model_len: int
    tokens: msgspec.Raw
    token_strs: msgspec.Raw


class DetokenizeRequest(msgspec.Struct):
    tokens: Annotated[list[int], field_schema(maxItems=Limits.detokenize_tokens)]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class _DetokenizeAnswer(msgspec.Struct):
    """A DetokenizeAnswer whose text is JSON already."""

    prompt: msgspec.Raw


class TokenizerInfo(msgspec.Struct):
    """Beside these, what tokenizer_config.json has."""

    tokenizer_class: str | None
    chat_template: str | None


def routes(context: ServerContext) -> list[JsonRoute]:
    limits = context.settings.limits
    tokenize_decoder = RequestDecoder(
        context,
        TokenizeRequest,
        _NOT_SERVED,
        large={"prompt": limits.body_bytes, "messages": limits.body_bytes, "tools": limits.tools_bytes},
        further=lambda envelope: check_chat_sizes(envelope, limits),
        also=("chat_template_kwargs",),
    )
    detokenize_decoder = RequestDecoder(
        context,
        DetokenizeRequest,
        {},
        large={"tokens": limits.body_bytes},
        further=lambda envelope: _check_count(envelope, limits),
    )

    async def tokenize(request: Request) -> Response:
        asked = await tokenize_decoder.decode(await read_body(request.receive))
        model = context.allowed_model(asked.model, request.scope)
        work = _tokenized(context.settings, model, asked, client_of(request.scope))
        return json_response(await unless_gone(request.receive, work))

    async def detokenize(request: Request) -> Response:
        asked = await detokenize_decoder.decode(await read_body(request.receive))
        model = context.allowed_model(asked.model, request.scope)
        work = _detokenized(model, asked, client_of(request.scope))
        return json_response(await unless_gone(request.receive, work))

    info = [_info_route(context)] if context.settings.tokenizer_info else []
    return [
        *info,
        JsonRoute(
            "/tokenize",
            tokenize,
            "The token ids of a prompt or a chat.",
            methods=("POST",),
            body=TokenizeRequest,
            answer=TokenizeAnswer,
        ),
        JsonRoute(
            "/detokenize",
            detokenize,
            "The text of token ids.",
            methods=("POST",),
            body=DetokenizeRequest,
            answer=DetokenizeAnswer,
        ),
    ]


def _info_route(context: ServerContext) -> JsonRoute:
    """Reads the tokenizer's settings once. Raises ModelError."""
    model = context.default_model
    folder = model.engine.config.model.tokenizer
    config = (read_json(Path(folder), "tokenizer_config.json") or {}) if folder else {}
    template = "" if model.text is None else model.text.template
    own = TokenizerInfo(config.get("tokenizer_class"), template or None)
    # The machine's files are nobody's business.
    public = {name: value for name, value in config.items() if name != "name_or_path" and not name.endswith("_file")}
    answer = {**public, **msgspec.to_builtins(own)}

    async def info(_request: Request) -> Response:
        return json_response(answer)

    return JsonRoute("/tokenizer_info", info, "The tokenizer's settings.", answer=TokenizerInfo)


def _workers(model: ServedModel) -> TextWorkers:
    """Raises RequestError if there is no tokenizer."""
    if model.text is None:
        raise RequestError("This server has no tokenizer.")
    return model.text


async def _tokenized(
    settings: ServerSettings, model: ServedModel, request: TokenizeRequest, client: str
) -> _TokenizeAnswer:
    workers, most = _workers(model), settings.limits.prompt_chars
    spelled = bool(request.return_token_strs)
    check_efforts(request)
    if request.prompt is not None and request.messages is None:
        if len(request.prompt) > most:
            raise RequestError(f"A prompt must be at most {most} characters long.", param="prompt")
        job: EncodeJob | ChatJob = EncodeJob([request.prompt], request.add_special_tokens is not False, spelled=spelled)
    elif request.messages is not None and request.prompt is None:
        chat = request.chat()
        job = prompt_job(settings, model, chat, tool_use(chat, model.format, settings.limits))
        job.spelled = spelled
        await show_media(model, chat, job, client)
    else:
        raise RequestError("Send either prompt or messages.", param="prompt")
    listed = await workers.list_tokens(job, client)
    ids, spelled_ids = msgspec.Raw(listed.ids), msgspec.Raw(listed.spelled)
    return _TokenizeAnswer(listed.count, model.engine.info.max_model_len, ids, spelled_ids)


async def _detokenized(model: ServedModel, request: DetokenizeRequest, client: str) -> _DetokenizeAnswer:
    below = model.engine.config.model.vocab_size
    text = await _workers(model).decode(request.tokens, skip_special_tokens=False, below=below, owner=client)
    return _DetokenizeAnswer(msgspec.Raw(text))


def _check_count(envelope: Envelope, limits: Limits) -> None:
    """Raises RequestError. Counts in the undecoded JSON, so that a list that is too long is never decoded."""
    if envelope.raw("tokens").count(b",") >= limits.detokenize_tokens:
        raise RequestError(f"tokens must have at most {limits.detokenize_tokens} ids.", param="tokens")
