"""What chat and completions share: handling a request, collecting its outputs, and writing the chunks of a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import msgspec
from starlette.types import Receive, Scope, Send

from tessera.errors import EngineStepError, RequestError
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import SamplingParams, with_max_tokens
from tessera.server.access import name_by_body, request_id_of
from tessera.server.assembly import is_small
from tessera.server.context import ServerContext
from tessera.server.http import read_body, send_json, until_disconnect
from tessera.server.openai.logprobs import Position
from tessera.server.openai.protocol import CompletionTokensDetails, GenerationFields, PromptTokensDetails, Usage
from tessera.server.openai.sampling import Owner, Way
from tessera.server.sse import EventWire, send_events

T = TypeVar("T")
# The finish reasons that clients see. Any other one means that the engine cut the answer short, which is an error.
_REASONS = frozenset({None, "stop", "length"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Prompt:
    """A prompt. text: None if the client sent token ids or a chat."""

    token_ids: Sequence[int]
    text: str | None = None


@dataclass(frozen=True)
class Identity:
    """The fields that every chunk of an answer repeats."""

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, context: ServerContext, prefix: str, request: GenerationFields, scope: Scope) -> Identity:
        if request.request_id is not None:
            name_by_body(scope, request.request_id)
        return cls(f"{prefix}-{request_id_of(scope)}", context.named(request.model), int(time.time()))


class Generation:
    """Runs the prompts of one HTTP request in the engine. Choices are numbered across the prompts, `n` for each."""

    def __init__(
        self,
        context: ServerContext,
        owner: Owner,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        way: Way,
        request_id: str,
        *,
        prompt_only: bool = False,
    ) -> None:
        """prompt_only: leave the answers blank. Raises RequestError for too many choices."""
        limits = context.settings.limits
        if len(prompts) * way.width > limits.choices:
            raise RequestError(
                f"prompts times n must be at most {limits.choices}, got {len(prompts)} x {way.width}.", param="n"
            )
        self.prompts = prompts
        self.params = params
        self.always_tells_usage = context.settings.force_include_usage
        self.fingerprint = context.fingerprint
        self._answers = context.settings.answers
        self.assembly = context.assembly
        self._engine = context.engine
        self._asked = context.asked
        self._vocab_size = context.engine.config.model.vocab_size
        self._way = way
        self._owner = owner
        # Clients may repeat their ids; the number makes the name unique.
        self._name = f"{request_id}-{next(context.numbers)}"
        self._cached = [0] * len(prompts)
        self._generated = [0] * len(prompts) * params.n
        self._prompt_only = prompt_only
        self._reasoning: Callable[[], int] | None = None
        self.prompt_logprobs: list[Sequence[Position | None]] = [()] * len(prompts)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def prompt_of(self, choice: int) -> Prompt:
        return self.prompts[choice // self.params.n]

    def prompt_logprobs_of(self, choice: int) -> Sequence[Position | None]:
        """The prompt's log probabilities that `outputs` has yielded so far; empty if the request asked for none."""
        return self.prompt_logprobs[choice // self.params.n]

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Yields (index of the prompt's first choice, output) as outputs arrive. Closing it aborts the requests. Raises
        RateLimitError and OverloadedError, before the first, if all together ask for too much."""
        with self._asked.admit(self._owner.tenant, self._num_asked()):
            async with aclosing(self._outputs()) as outputs:
                async for output in outputs:
                    yield output

    def _num_asked(self) -> int:
        """Tokens that the answers may have, each counted with its log probabilities."""
        logprobs = self.params.logprobs or 0
        values = 1 + (self._vocab_size if logprobs < 0 else logprobs)
        return self._way.width * values * sum(self._limit(prompt) or self._room(prompt) for prompt in self.prompts)

    def _room(self, prompt: Prompt) -> int:
        """Tokens that the context has room for. The engine refuses a prompt that leaves none."""
        return max(self._engine.info.max_model_len - len(prompt.token_ids), 1)

    async def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        # Once for all prompts: there may be thousands of words.
        params = await self._engine.tokenize_bad_words(self.params, self._owner.arguments["client"])
        streams = [self._engine_outputs(index, params) for index in range(len(self.prompts))]
        async with aclosing(merged(streams)) as merged_streams:
            async for index, output in merged_streams:
                for answer in output.outputs:
                    if answer.finish_reason not in _REASONS:
                        raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
                    if self._prompt_only:
                        _blank(answer)
                    self._generated[index * self.params.n + answer.index] += len(answer.token_ids)
                self._cached[index] = output.num_cached_tokens
                self.prompt_logprobs[index] = output.prompt_logprobs or self.prompt_logprobs[index]
                yield index * self.params.n, output

    async def assembled(self, answers: Sequence[CompletionOutput], assemble: Callable[[], T]) -> T:
        """What `assemble` makes of whole outputs, and of the prompts' log probabilities; on another thread if they are
        large."""
        return assemble() if is_small(answers, self.prompt_logprobs) else await self.assembly.run(assemble)

    def counts_reasoning(self, count: Callable[[], int]) -> None:
        """count: the tokens of reasoning among those that `outputs` has yielded so far."""
        self._reasoning = count

    def usage(self) -> Usage:
        """The tokens that `outputs` has yielded so far. Each prompt counts once."""
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        usage = _usage(num_prompt_tokens, sum(self._generated), sum(self._cached))
        if self._reasoning is not None:
            usage.completion_tokens_details = CompletionTokensDetails(self._reasoning())
        return usage

    def usage_of(self, choice: int, *, begins: bool) -> Usage:
        """The tokens of one choice so far. begins: before its first token."""
        cached = self._cached[choice // self.params.n]
        return _usage(len(self.prompt_of(choice).token_ids), 0 if begins else self._generated[choice], cached)

    def _engine_outputs(self, index: int, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        prompt = self.prompts[index]
        limited = with_max_tokens(params, self._limit(prompt))
        return self._way.generate(prompt.token_ids, limited, f"{self._name}-{index}", **self._owner.arguments)

    def _limit(self, prompt: Prompt) -> int | None:
        """max_tokens: the server's limit if the request sets none, and the room that is left if it asks for more."""
        asked, room = self.params.max_tokens, self._room(prompt)
        return self._answers.unasked(room) if asked is None else min(asked, room)


def _usage(prompt: int, generated: int, cached: int) -> Usage:
    return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))


def _blank(answer: CompletionOutput) -> None:
    answer.text, answer.token_ids, answer.stop_reason = "", [], None
    answer.finish_reason = "length" if answer.finished else None
    answer.logprobs = None if answer.logprobs is None else []


async def merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yields (index of the stream, output) as outputs arrive. The first error ends all streams and is raised."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for output in stream:
                yield 0, output
        return
    # One place each: what a slow reader does not take stays with the engine's front end, which bounds it.
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(len(streams))

    async def pump(index: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(stream):
                async for output in stream:
                    await queue.put((index, output))
        except Exception as error:  # noqa: BLE001 - raised below
            await queue.put((index, error))
        else:
            await queue.put((index, None))

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def collect(generation: Generation) -> list[CompletionOutput]:
    """All choices in order, once all have ended. Raises the error that ended a request."""
    answers: dict[int, CompletionOutput] = {}
    async with aclosing(generation.outputs()) as outputs:
        async for first, output in outputs:
            answers.update((first + answer.index, answer) for answer in output.outputs)
    return [answers[index] for index in range(generation.num_choices)]


# ---- handling a request ----------------------------------------------------------------------------------------------


class Answer(Protocol):
    """The answer to a valid request, as a struct or as pieces of its JSON."""

    async def whole(self) -> msgspec.Struct | list[bytes]: ...


@runtime_checkable
class StreamedAnswer(Answer, Protocol):
    """An answer that is events if `stream`. wire: how its stream ends."""

    stream: bool
    wire: EventWire

    def events(self) -> AsyncGenerator[bytes, None]: ...


class GenerationEndpoint:
    """The ASGI application of a route that generates. Reads the body, responds with one answer or a stream, and stops
    generating if the client disconnects. read: turns a body and its scope into an Answer; may raise TesseraError."""

    def __init__(self, read: Callable[[bytes, Scope], Awaitable[Answer]], context: ServerContext) -> None:
        self._read = read
        self._counts = context.counts
        self._assembly = context.assembly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counts.one_generating():
            body = await read_body(receive)
            await until_disconnect(receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._read(body, scope)
        if isinstance(answer, StreamedAnswer) and answer.stream:
            await send_events(send, answer.events(), answer.wire)
        else:
            whole = await answer.whole()
            await send_json(send, whole if isinstance(whole, list) else await self._assembly.encode(whole))


# ---- the chunks of a stream ------------------------------------------------------------------------------------------


class ChunkWriter:
    """Writes the choices of one stream as events, with the usage that the request asked for, as vLLM counts it:
    the last event has that of all choices, and each event, if that is asked for too, that of its own choice.

    What all events share is encoded once per stream, so that a token costs little more than encoding its text.
    """

    def __init__(self, identity: Identity, kind: str, generation: Generation, request: GenerationFields) -> None:
        options = request.stream_options
        self._generation = generation
        asked = options is not None and bool(options.include_usage)
        forced = generation.always_tells_usage
        self._usage_at_end = asked or forced
        self._usage_always = forced or (asked and options is not None and bool(options.continuous_usage_stats))
        head = {"id": identity.id, "object": kind, "created": identity.created, "model": identity.model}
        shared = _encode({**head, "system_fingerprint": generation.fingerprint})
        self._head = b"data: " + shared[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if self._usage_at_end else b"}\n\n"

    def chunk(self, index: int, choice: bytes, *, begins: bool = False, more: bytes = b"") -> bytes:
        """An event with one choice, which has this index. begins: before the choice's first token. more: further
        members of the event, such as `,"a":1`."""
        usage = self._usage(self._generation.usage_of(index, begins=begins)) if self._usage_always else self._tail
        return self._head + choice + b"]" + more + usage

    def last(self) -> bytes:
        """The event after all choices, with the usage; empty if the request asked for none."""
        return self._head + b"]" + self._usage(self._generation.usage()) if self._usage_at_end else b""

    def _usage(self, usage: Usage) -> bytes:
        return b',"usage":' + _encode(usage) + b"}\n\n"


def piece(index: int, content: bytes, logprobs: bytes = b"null", token_ids: bytes = b"") -> bytes:
    """A choice that goes on. content: members of a JSON object, such as `"text":"..."`."""
    return b'{"index":%d,%b,"logprobs":%b,"finish_reason":null%b}' % (index, content, logprobs, token_ids)


def finish(index: int, content: bytes, answer: CompletionOutput, token_ids: bytes = b"") -> bytes:
    """A choice that has ended. content: as for piece()."""
    return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b%b}' % (
        index,
        content,
        _encode(answer.finish_reason),
        _encode(answer.stop_reason),
        token_ids,
    )


NO_TOKEN_IDS = b',"token_ids":[]'
"""Of a choice without new tokens: where they are asked for, clients read them in every choice."""


def token_ids(answer: CompletionOutput) -> bytes:
    return b',"token_ids":' + _encode(answer.token_ids)


def prompt_token_ids(prompt: Prompt) -> bytes:
    return b',"prompt_token_ids":' + _encode(prompt.token_ids)
