"""The scores of the pairs of texts of one request."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.engine.scoring import READS_PAIRS, check_one_label, scoring_params, similarity
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.server.generation.usage import TokenUsage
from tessera.server.pooling.inputs import PooledInput, with_instruction
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun
from tessera.server.pooling.tokens import check_texts
from tessera.text_pair import TextPair

Instructions = tuple[str | None, str | None]
NO_INSTRUCTIONS: Instructions = (None, None)
_FEW = 2**16
"""Numbers of vectors that take the event loop little to compare."""


class PairScores:
    """The scores of the pairs of one request. pairs: of the run's outputs, by their numbers; None if each output is a
    score itself."""

    def __init__(self, run: PoolingRun, pairs: Sequence[tuple[int, int]] | None) -> None:
        self._run = run
        self._pairs = pairs

    @classmethod
    async def prepare(
        cls,
        request: PoolingRequest,
        first: Sequence[PooledInput],
        second: Sequence[PooledInput],
        *,
        use_activation: bool | None = None,
        instructions: Instructions = NO_INSTRUCTIONS,
    ) -> PairScores:
        """first: as many as of the second, or one for all of them. use_activation: of a model that reads both texts.
        instructions: the names of the model's for each of the two, if it embeds. Raises RequestError,
        TextWorkerError."""
        firsts = first if len(first) == len(second) else [*first] * len(second)
        params = scoring_params(request.pooler, request.task, PoolingParams(use_activation=use_activation))
        if request.task == READS_PAIRS:
            check_one_label(request.pooler)
            check_texts([*first, *second], request.context.settings.limits)
            pairs = [
                PooledInput(two.place, TextPair(_text(one), _text(two)))
                for one, two in zip(firsts, second, strict=True)
            ]
            return cls(await PoolingRun.prepare(request, pairs, params), None)
        first, second = (
            with_instruction(request, texts, name) for texts, name in zip((first, second), instructions, strict=True)
        )
        run = await PoolingRun.prepare(request, [*first, *second], params)
        count = len(first)
        return cls(run, [(index % count, count + index) for index in range(len(second))])

    async def scores(self) -> list[float]:
        """Of each pair, in their order."""
        outputs, pairs = await self._run.outputs(), self._pairs
        if pairs is None:
            return [float(output[0]) for output in outputs]
        task = self._run.request.task

        def compared() -> list[float]:
            return [similarity(task, outputs[one], outputs[two]) for one, two in pairs]

        assembly = self._run.request.context.assembly
        return compared() if self._run.num_numbers <= _FEW else await assembly.run(compared)

    def usage(self) -> TokenUsage:
        return self._run.usage()


def _text(pooled: PooledInput) -> str:
    """Of a pair that a model reads at once. Raises RequestError for an image."""
    if isinstance(pooled.value, str):
        return pooled.value
    raise RequestError(f"{pooled.place}: this model reads pairs of texts; an image is of no pair.", param=pooled.place)
