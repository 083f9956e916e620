"""POST /tokenize and /detokenize: what the model's tokenizer and chat template make of a text, a chat or tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera.errors import RequestError
from tessera.server.connection import read_body
from tessera.server.context import ServerContext
from tessera.server.openai.decode import Envelope, RequestDecoder
from tessera.server.openai.not_served import Values
from tessera.server.openai.protocol import ChatMessage
from tessera.server.openai.template import chat_job, check_sizes
from tessera.server.settings import Limits
from tessera.text.worker import EncodeJob

if TYPE_CHECKING:
    from tessera.text.workers import TextWorkers

# Fields of a chat that vLLM takes here too.
_NOT_SERVED: dict[str, Values] = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "tools": ([],),
}


class TokenizeRequest(msgspec.Struct):
    """A prompt, or the messages of a chat. None is as good as absent."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(msgspec.Struct):
    """token_strs: the tokens as the vocabulary spells them, where that was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


def routes(context: ServerContext) -> list[Route]:
    limits = context.settings.limits
    tokenize_decoder = RequestDecoder(
        TokenizeRequest,
        _NOT_SERVED,
        large={"prompt": limits.body_bytes, "messages": limits.body_bytes},
        other_bytes=limits.other_bytes,
        further=lambda envelope: check_sizes(envelope, limits),
        also=("chat_template_kwargs",),
    )
    detokenize_decoder = RequestDecoder(
        DetokenizeRequest,
        {},
        large={"tokens": limits.body_bytes},
        other_bytes=limits.other_bytes,
        further=lambda envelope: _check_count(envelope, limits),
    )

    async def tokenize(request: Request) -> Response:
        asked = tokenize_decoder.decode(await read_body(request.receive))
        return _json(await _tokenized(context, asked, _workers(context, asked.model)))

    async def detokenize(request: Request) -> Response:
        asked = detokenize_decoder.decode(await read_body(request.receive))
        return _json(await _detokenized(context, asked, _workers(context, asked.model)))

    return [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]


def _workers(context: ServerContext, model: str | None) -> TextWorkers:
    """Raises RequestError, NotFoundError."""
    if model is not None:
        context.check_name(model)
    if context.engine.text is None:
        raise RequestError("There is no tokenizer here: the server was started without one.")
    return context.engine.text


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _tokenized(context: ServerContext, asked: TokenizeRequest, workers: TextWorkers) -> TokenizeAnswer:
    most = context.settings.limits.prompt_chars
    spelled = bool(asked.return_token_strs)
    if asked.prompt is not None and asked.messages is None:
        if len(asked.prompt) > most:
            raise RequestError(f"A prompt has at most {most} characters.", param="prompt")
        encoded = await workers.encoded(
            EncodeJob([asked.prompt], asked.add_special_tokens is not False, spelled=spelled)
        )
    elif asked.messages is not None and asked.prompt is None:
        job = chat_job(context, asked.messages, asked)
        job.spelled = spelled
        encoded = await workers.chat(job)
    else:
        raise RequestError("Give either prompt or messages.", param="prompt")
    (tokens,) = encoded.ids
    return TokenizeAnswer(len(tokens), context.engine.info.max_model_len, tokens, encoded.spelled)


async def _detokenized(context: ServerContext, asked: DetokenizeRequest, workers: TextWorkers) -> DetokenizeAnswer:
    vocab_size = context.engine.config.model.vocab_size
    if any(not 0 <= token < vocab_size for token in asked.tokens):
        raise RequestError(f"tokens must be from 0 to {vocab_size - 1}, the model's vocabulary.", param="tokens")
    return DetokenizeAnswer(await workers.decode(asked.tokens, skip_special_tokens=False))


def _check_count(envelope: Envelope, limits: Limits) -> None:
    """Counts in the undecoded JSON, so that nothing is built of too much."""
    if envelope.raw("tokens").count(b",") >= limits.detokenize_tokens:
        raise RequestError(f"tokens holds at most {limits.detokenize_tokens} token ids.", param="tokens")
