"""The outputs of the prompts of one request, as the engine yields them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.types import Scope

from tessera.errors import EngineStepError, RequestError
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import SamplingParams, with_max_tokens
from tessera.server.access import name_by_body, request_id_of
from tessera.server.assembly import is_small
from tessera.server.context import ServerContext
from tessera.server.generation.beams import GenerationMethod
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.logprobs import Position
from tessera.server.generation.owner import RequestOwner
from tessera.server.generation.prompt import Prompt
from tessera.server.generation.usage import TokenUsage

T = TypeVar("T")
# The finish reasons that clients see. Any other one means that the engine cut the answer short, which is an error.
_REASONS = frozenset({None, "stop", "length"})
_encode = msgspec.json.Encoder().encode


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
        owner: RequestOwner,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        way: GenerationMethod,
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

    def usage(self) -> TokenUsage:
        """The tokens that `outputs` has yielded so far."""
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        reasoning = None if self._reasoning is None else self._reasoning()
        return TokenUsage(num_prompt_tokens, sum(self._generated), sum(self._cached), reasoning)

    def choice_usage(self, choice: int, *, begins: bool) -> TokenUsage:
        """The tokens of one choice so far. begins: before its first token."""
        generated = 0 if begins else self._generated[choice]
        return TokenUsage(len(self.prompt_of(choice).token_ids), generated, self._cached[choice // self.params.n])

    def _engine_outputs(self, index: int, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        prompt = self.prompts[index]
        limited = with_max_tokens(params, self._limit(prompt))
        return self._way.generate(prompt.token_ids, limited, f"{self._name}-{index}", **self._owner.arguments)

    def _limit(self, prompt: Prompt) -> int | None:
        """max_tokens: the server's limit if the request sets none, and the room that is left if it asks for more."""
        asked, room = self.params.max_tokens, self._room(prompt)
        return self._answers.unasked(room) if asked is None else min(asked, room)


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
