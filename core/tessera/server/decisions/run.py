"""Asks the engine the questions of a request, each of which is a prompt of its own, for the probabilities of the labels
where its answer begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from tessera.arrays import Array
from tessera.errors import EngineStepError
from tessera.request import Logprob, RequestMetrics
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.server.context import ServerContext
from tessera.server.decisions.labelled import LabelledText
from tessera.server.generation.prepare import RequestOwner
from tessera.server.served_model import ServedModel
from tessera.server.tracing import EndedRequest

T = TypeVar("T")
U = TypeVar("U")
_FEW = 16
"""Questions of a request that take the event loop little."""
_AT_ONCE = 16
"""Questions of a request that the engine has at once. Their answers come together, and are read without a pause."""


class LabelLogprobs(NamedTuple):
    """What is kept of the engine's output until all questions are answered. position: the log probabilities of the
    labels. argmax: the most likely token of the whole vocabulary."""

    position: Mapping[int, Logprob]
    argmax: int
    num_cached_tokens: int


class DecisionRun:
    """questions, prompts: one of each for each question. The prompts have the input in front, so all but the first find
    it in the cache."""

    def __init__(
        self,
        context: ServerContext,
        model: ServedModel,
        questions: Sequence[LabelledText],
        prompts: Sequence[Array],
        owner: RequestOwner,
    ) -> None:
        self.model = model
        self._questions = questions
        self._prompts = prompts
        self._owner = owner
        self._name = f"decision-{next(context.numbers)}"

    @property
    def num_prompt_tokens(self) -> int:
        """Of all questions."""
        return sum(map(len, self._prompts))

    async def logprobs(self) -> list[LabelLogprobs]:
        """Of each question. Raises RateLimitError if the API key has no tokens left."""
        self._owner.budget.begin(self.num_prompt_tokens)
        first, *others = range(len(self._questions))
        found = [await self._ask(first)]
        places = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(index: int) -> LabelLogprobs:
            async with places:
                return await self._ask(index)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(index)) for index in others]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # each names its cause; the first ended the others
        return found + [task.result() for task in tasks]

    async def _ask(self, index: int) -> LabelLogprobs:
        """Raises EngineStepError if the engine cut the answer short."""
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            logprob_token_ids=self._questions[index].tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        name = f"{self._name}-{index}"
        prompt = self._prompts[index].tolist()
        num_generated, times = 0, RequestMetrics()

        def ended() -> list[EndedRequest]:
            return [EndedRequest(name, self.model.name, params, len(prompt), num_generated, times)]

        outputs = self.model.engine.generate(prompt, params, name, **self._owner.arguments)
        with self._owner.trace.follow(ended):
            async with aclosing(outputs):
                output = [output async for output in outputs][-1]
            num_generated, times = 1, output.metrics
        (answer,) = output.outputs
        if not answer.logprobs:
            raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
        return LabelLogprobs(answer.logprobs[0], answer.token_ids[0], output.num_cached_tokens)


async def for_each(context: ServerContext, work: Callable[[int, T], U], values: Sequence[T]) -> list[U]:
    """The results of work(index, value); beside the event loop if there are many."""

    def results() -> list[U]:
        return [work(index, value) for index, value in enumerate(values)]

    return results() if len(values) <= _FEW else await context.assembly.run(results)
