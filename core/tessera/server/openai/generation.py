"""From a request's fields to the engine's outputs: what chat and completions have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.types import Scope

from tessera.errors import EngineStepError, RequestError
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.server.context import ServerContext
from tessera.server.openai.logprobs import Position
from tessera.server.openai.protocol import GenerationFields, PromptTokensDetails, Usage
from tessera.server.openai.sampling import Owner
from tessera.server.request_ids import id_of, rename

# What an answer's finish_reason may be for a client. Anything else ended it early: it must not look like an answer.
_REASONS = frozenset({None, "stop", "length"})


@dataclass(frozen=True)
class Prompt:
    """text: None where the prompt came as token ids."""

    token_ids: Sequence[int]
    text: str | None = None


@dataclass(frozen=True)
class Identity:
    """What every piece of an answer repeats."""

    id: str
    model: str
    created: int

    @classmethod
    def of(cls, prefix: str, request: GenerationFields, scope: Scope) -> Identity:
        if request.request_id is not None:
            rename(scope, request.request_id)
        return cls(f"{prefix}-{id_of(scope)}", request.model, int(time.time()))


@dataclass(frozen=True)
class Way:
    """How prompts are answered. width: answers that a prompt has at the engine; generate: as AsyncEngine's."""

    width: int
    generate: Callable[..., AsyncGenerator[RequestOutput, None]]


class Generation:
    """The prompts of one HTTP request at the engine. Choices count through the prompts, `n` for each."""

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
        """prompt_only: nothing of the answers is given out."""
        limits = context.settings.limits
        if len(prompts) * way.width > limits.choices:
            raise RequestError(
                f"prompts times n is at most {limits.choices}, got {len(prompts)} x {way.width}.", param="n"
            )
        self.prompts = prompts
        self.params = params
        self.always_tells_usage = context.settings.force_include_usage
        self._answers = context.settings.answers
        self._engine = context.engine
        self._way = way
        self._owner = owner
        # Unique even where clients repeat their ids: the number tells them apart.
        self._name = f"{request_id}-{next(context.numbers)}"
        self._cached = [0] * len(prompts)
        self._generated = 0
        self._prompt_only = prompt_only
        self._prompt_logprobs: list[Sequence[Position | None]] = [()] * len(prompts)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def prompt_of(self, choice: int) -> Prompt:
        return self.prompts[choice // self.params.n]

    def prompt_logprobs_of(self, choice: int) -> Sequence[Position | None]:
        """As far as `outputs` has come; empty where none were asked for."""
        return self._prompt_logprobs[choice // self.params.n]

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(index of the prompt's first choice, output) as they come. Closing it ends the requests."""
        streams = [self._engine_outputs(index) for index in range(len(self.prompts))]
        async with aclosing(merged(streams)) as merged_streams:
            async for index, output in merged_streams:
                for answer in output.outputs:
                    if answer.finish_reason not in _REASONS:
                        raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
                    if self._prompt_only:
                        _blank(answer)
                    self._generated += len(answer.token_ids)
                self._cached[index] = output.num_cached_tokens
                self._prompt_logprobs[index] = output.prompt_logprobs or self._prompt_logprobs[index]
                yield index * self.params.n, output

    def usage(self) -> Usage:
        """As far as `outputs` has come; each prompt counts once."""
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        details = PromptTokensDetails(sum(self._cached))
        return Usage(num_prompt_tokens, self._generated, num_prompt_tokens + self._generated, details)

    def _engine_outputs(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        ids = self.prompts[index].token_ids
        params = self._bounded(len(ids))
        owner = self._owner
        return self._way.generate(
            ids,
            params,
            f"{self._name}-{index}",
            priority=owner.priority,
            cache_salt=owner.cache_salt,
            tenant=owner.tenant,
        )

    def _bounded(self, num_prompt_tokens: int) -> SamplingParams:
        """The params with the server's limit, where the request has none of its own."""
        limit = self._answers.unasked(self._engine.info.max_model_len - num_prompt_tokens)
        if self.params.max_tokens is not None or limit is None:
            return self.params
        return msgspec.structs.replace(self.params, max_tokens=limit)


def _blank(answer: CompletionOutput) -> None:
    answer.text, answer.token_ids, answer.stop_reason = "", [], None
    answer.finish_reason = "length" if answer.finished else None
    answer.logprobs = None if answer.logprobs is None else []


async def merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """(index of the stream, output) as they come; the first error ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for output in stream:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput] | asyncio.Task[None]] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        async with aclosing(stream):
            async for output in stream:
                queue.put_nowait((index, output))

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, tuple):
                yield item
            else:
                item.result()
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def collect(generation: Generation) -> list[CompletionOutput]:
    """All choices in order, when each has ended. Raises what ended a request otherwise."""
    answers: dict[int, CompletionOutput] = {}
    async with aclosing(generation.outputs()) as outputs:
        async for first, output in outputs:
            answers.update((first + answer.index, answer) for answer in output.outputs)
    return [answers[index] for index in range(generation.num_choices)]
