"""Runs all inputs of one request in the engine, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from tessera.arrays import Array
from tessera.engine.input_processor import PooledPrompt
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.request import PoolingRequestOutput, RequestMetrics
from tessera.server.generation.usage import TokenUsage
from tessera.server.pooling.inputs import PooledInput
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.tokens import prepare_inputs
from tessera.server.tracing import EndedRequest

_ROUNDS = 2
"""How many inputs of a request the engine has at once, for each that it computes at once."""


class PoolingRun:
    """The inputs of a request that is ready to run. num_numbers: of the answer."""

    def __init__(
        self, request: PoolingRequest, prompts: Sequence[PooledPrompt], params: PoolingParams, num_numbers: int
    ) -> None:
        self.request = request
        self.num_numbers = num_numbers
        self._prompts = prompts
        self._params = params
        # Clients may repeat their ids; the number makes the names unique.
        self._name = f"{request.identity.id}-{next(request.context.numbers)}"
        self._num_cached = 0

    @classmethod
    async def prepare(
        cls,
        request: PoolingRequest,
        inputs: Sequence[PooledInput],
        params: PoolingParams,
        *,
        add_special_tokens: bool = True,
    ) -> PoolingRun:
        """Tokenizes and checks all inputs, before any of them runs. Raises RequestError, TextWorkerError."""
        prompts = await prepare_inputs(request, inputs, params, add_special_tokens=add_special_tokens)
        numbers, most = _numbers(request, prompts, params), request.context.settings.limits.pooled_numbers
        if numbers > most:
            param = inputs[0].place.partition("[")[0]
            text = f"The answer would have {numbers} numbers, of at most {most}: send fewer texts or shorter ones."
            raise RequestError(text, param=param)
        return cls(request, prompts, params, numbers)

    async def outputs(self) -> list[Array]:
        """The numbers of each input, as PoolingOutput.data. The first error ends all inputs and is raised, and so does
        cancelling it."""
        engine = self.request.model.engine
        results: list[Array | None] = [None] * len(self._prompts)
        left = iter(range(len(self._prompts)))
        tasks = min(len(self._prompts), _ROUNDS * engine.info.max_num_seqs)
        self.request.owner.budget.begin(sum(len(prompt.ids) for prompt in self._prompts))
        with self.request.context.number_admission.admit(self.request.owner.tenant, self.num_numbers):
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(tasks):
                        group.create_task(self._run(left, results))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None  # each names its cause; the first ended the others
        return [result for result in results if result is not None]

    async def _run(self, indices: Iterator[int], results: list[Array | None]) -> None:
        """indices: the numbers of the inputs that nobody has begun."""
        for index in indices:
            output = await self._encode(index)
            self._num_cached += output.num_cached_tokens
            results[index] = output.outputs.data

    async def _encode(self, index: int) -> PoolingRequestOutput:
        model, owner, prompt, times = self.request.model, self.request.owner, self._prompts[index], RequestMetrics()
        name = f"{self._name}-{index}"

        def ended() -> list[EndedRequest]:
            return [EndedRequest(name, model.name, None, len(prompt.ids), 0, times)]

        with owner.trace.follow(ended):
            output = await model.engine.encode(prompt, self._params, name, **owner.arguments)
            times = output.metrics
        return output

    def usage(self) -> TokenUsage:
        """The tokens of all inputs; those that were cached, once `outputs` has returned."""
        return TokenUsage(sum(len(prompt.ids) for prompt in self._prompts), 0, self._num_cached)


def _numbers(request: PoolingRequest, prompts: Sequence[PooledPrompt], params: PoolingParams) -> int:
    """Of the whole answer."""
    pooler = request.pooler
    vectors = params.task in ("embed", "token_embed")
    width = (params.dimensions or pooler.dimensions) if vectors else max(len(pooler.labels), 1)
    by_token = params.task in ("token_embed", "token_classify")
    return width * (sum(len(prompt.ids) for prompt in prompts) if by_token else len(prompts))
