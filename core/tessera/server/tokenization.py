"""POST /tokenize and /detokenize: what the model's tokenizer and chat template make of a text, a chat or tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from tessera.server.openai.template import chat_text, check_sizes
from tessera.server.settings import Limits
from tessera.text import Tokenizer

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
        return await _answered(context, asked.model, lambda tokenizer: _tokenized(context, asked, tokenizer))

    async def detokenize(request: Request) -> Response:
        asked = detokenize_decoder.decode(await read_body(request.receive))
        return await _answered(context, asked.model, lambda tokenizer: _detokenized(context, asked, tokenizer))

    return [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]


async def _answered(context: ServerContext, model: str | None, work: Callable[[Tokenizer], msgspec.Struct]) -> Response:
    """Raises RequestError, NotFoundError. The work is done in a thread: a text may be long."""
    if model is not None:
        context.check_name(model)
    tokenizer = context.engine.tokenizer
    if tokenizer is None:
        raise RequestError("There is no tokenizer here: the server was started without one.")
    answer = await context.in_thread(lambda: work(tokenizer))
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _tokenized(context: ServerContext, asked: TokenizeRequest, tokenizer: Tokenizer) -> TokenizeAnswer:
    most = context.settings.limits.prompt_chars
    if asked.prompt is not None and asked.messages is None:
        if len(asked.prompt) > most:
            raise RequestError(f"A prompt has at most {most} characters.", param="prompt")
        tokens = tokenizer.encode(asked.prompt, asked.add_special_tokens is not False)
    elif asked.messages is not None and asked.prompt is None:
        # The template has put the special tokens in.
        text = chat_text(context, asked.messages, asked)
        tokens = tokenizer.encode(text, bool(asked.add_special_tokens))
    else:
        raise RequestError("Give either prompt or messages.", param="prompt")
    spelled = [tokenizer.token(token) or "" for token in tokens] if asked.return_token_strs else None
    return TokenizeAnswer(len(tokens), context.engine.info.max_model_len, tokens, spelled)


def _detokenized(context: ServerContext, asked: DetokenizeRequest, tokenizer: Tokenizer) -> DetokenizeAnswer:
    vocab_size = context.engine.config.model.vocab_size
    if any(not 0 <= token < vocab_size for token in asked.tokens):
        raise RequestError(f"tokens must be from 0 to {vocab_size - 1}, the model's vocabulary.", param="tokens")
    return DetokenizeAnswer(tokenizer.decode(asked.tokens, skip_special_tokens=False))


def _check_count(envelope: Envelope, limits: Limits) -> None:
    """Counts in the undecoded JSON, so that nothing is built of too much."""
    if envelope.raw("tokens").count(b",") >= limits.detokenize_tokens:
        raise RequestError(f"tokens holds at most {limits.detokenize_tokens} token ids.", param="tokens")
