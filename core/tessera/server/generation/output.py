"""The outputs of the prompts of one request, as the engine yields them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from tessera.engine.input_processor import Prompt
from tessera.errors import EngineStepError
from tessera.kv_transfer_params import KVTransferParams
from tessera.request import CompletionOutput, RequestMetrics, RequestOutput
from tessera.server.assembly import is_small
from tessera.server.context import ServerContext
from tessera.server.generation.logprobs import Position
from tessera.server.generation.prepare import PreparedRequest
from tessera.server.generation.usage import TokenUsage
from tessera.server.tracing import EndedRequest

T = TypeVar("T")
# The finish reasons that clients see. Any other one means that the engine cut the answer short, which is an error.
_REASONS = frozenset({None, "stop", "length"})


class Generation:
    """Runs the prompts of one HTTP request in the engine. Choices are numbered across the prompts, `n` for each."""

    def __init__(self, context: ServerContext, request: PreparedRequest) -> None:
        self.identity = request.identity
        self.prompts = request.prompts
        self.params = request.params
        self.num_choices = request.num_choices
        self.model = request.model
        self.force_include_usage = context.settings.force_include_usage
        self.assembly = context.assembly
        self.prompt_logprobs: list[Sequence[Position | None]] = [()] * len(request.prompts)
        """Of each prompt, those that `outputs` has yielded; empty if the request asked for none."""
        self.kv_transfer_params: KVTransferParams | None = None
        """Where another engine finds the prompt's cache, if the request asked for that, once it has ended."""
        self._request = request
        self._admission = context.token_admission
        # Clients may repeat their ids; the number makes the names unique.
        name = f"{request.identity.id}-{next(context.numbers)}"
        self._indices = {f"{name}-{index}": index for index in range(len(request.prompts))}
        self._num_cached = [0] * len(request.prompts)
        self._num_generated = [0] * request.num_choices
        self._times = [RequestMetrics() for _ in request.prompts]
        self._count_reasoning: Callable[[], int] | None = None

    def choice_prompt(self, choice: int) -> Prompt:
        return self.prompts[choice // self.params.n]

    def choice_prompt_logprobs(self, choice: int) -> Sequence[Position | None]:
        return self.prompt_logprobs[choice // self.params.n]

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Yields (index of the prompt's first choice, output) as outputs arrive. Closing it aborts the requests. Raises
        RateLimitError and OverloadedError, before the first, if all together ask for too much or
        the API key has no tokens left."""
        request, n, budget = self._request, self.params.n, self._request.owner.budget
        budget.begin(sum(len(prompt.ids) for prompt in self.prompts))
        admitted = self._admission.admit(request.owner.tenant, request.num_values)
        with admitted, request.owner.trace.follow(self._ended):
            streams = [
                request.method.generate(prompt, params, name, **request.owner.arguments)
                for prompt, params, name in zip(request.prompts, request.prompt_params, self._indices, strict=True)
            ]
            async with aclosing(streams[0] if len(streams) == 1 else merged(streams)) as outputs:
                async for output in outputs:
                    index = self._indices[output.request_id]
                    self._times[index] = output.metrics
                    for answer in output.outputs:
                        if answer.finish_reason not in _REASONS:
                            raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
                        if request.prompt_only:
                            _blank(answer)
                        self._num_generated[index * n + answer.index] += len(answer.token_ids)
                        budget.generated(len(answer.token_ids))
                    self._num_cached[index] = output.num_cached_tokens
                    self.kv_transfer_params = output.kv_transfer_params
                    self.prompt_logprobs[index] = output.prompt_logprobs or self.prompt_logprobs[index]
                    yield index * n, output

    def _ended(self) -> Iterator[EndedRequest]:
        n, request = self.params.n, self._request
        for name, index in self._indices.items():
            num_generated = sum(self._num_generated[index * n : (index + 1) * n])
            num_prompt = len(self.prompts[index].ids)
            yield EndedRequest(
                name, self.model.name, request.prompt_params[index], num_prompt, num_generated, self._times[index]
            )

    async def assembled(self, answers: Sequence[CompletionOutput], assemble: Callable[[], T]) -> T:
        """What `assemble` makes of whole outputs, and of the prompts' log probabilities; on another thread if they are
        large."""
        return assemble() if is_small(answers, self.prompt_logprobs) else await self.assembly.run(assemble)

    def count_reasoning(self, count: Callable[[], int]) -> None:
        """count: the tokens of reasoning among those that `outputs` has yielded so far."""
        self._count_reasoning = count

    def told_transfer(self) -> dict[str, Any] | UnsetType | None:
        """What a whole answer says of its prompt's cache: null if it is not kept, and nothing if nobody asked."""
        asked = self.params.kv_transfer_params
        if asked is None or not asked.do_remote_decode:
            return UNSET
        return None if self.kv_transfer_params is None else self.kv_transfer_params.as_fields()

    def usage(self) -> TokenUsage:
        """The tokens that `outputs` has yielded so far."""
        num_prompt_tokens = sum(len(prompt.ids) for prompt in self.prompts)
        reasoning = None if self._count_reasoning is None else self._count_reasoning()
        return TokenUsage(num_prompt_tokens, sum(self._num_generated), sum(self._num_cached), reasoning)

    def choice_usage(self, choice: int, *, begins: bool) -> TokenUsage:
        """The tokens of one choice so far. begins: before its first token."""
        generated = 0 if begins else self._num_generated[choice]
        return TokenUsage(len(self.choice_prompt(choice).ids), generated, self._num_cached[choice // self.params.n])


def _blank(answer: CompletionOutput) -> None:
    answer.text, answer.token_ids, answer.stop_reason = "", [], None
    answer.finish_reason = "length" if answer.finished else None
    answer.logprobs = None if answer.logprobs is None else []


async def merged(streams: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[RequestOutput, None]:
    """Yields outputs as they arrive. The first error ends all streams and is raised."""
    # One place each: what a slow reader does not take stays with the engine's front end, which bounds it.
    queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue(len(streams))

    async def pump(stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(stream):
                async for output in stream:
                    await queue.put(output)
        except Exception as error:  # noqa: BLE001 - raised below
            await queue.put(error)
        else:
            await queue.put(StopAsyncIteration())

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, StopAsyncIteration):
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
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
