"""How well two texts belong together, by the kind of model: one that reads both at once says it; of one that embeds
texts it is the cosine of their vectors; and of one that embeds tokens, how much each token of the first has its like
in the second (ColBERT's MaxSim)."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.arrays import Array
from tessera.config.pooler import PoolingTask
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.server.generation.usage import TokenUsage
from tessera.server.pooling.inputs import PooledInput, with_instruction
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun
from tessera.server.pooling.tokens import check_texts
from tessera.text_pair import TextPair

TASKS: tuple[PoolingTask, ...] = ("classify", "embed", "token_embed")
"""What scores pairs, in the order of preference."""
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
        if request.task == "classify":
            _check_one_label(request)
            check_texts([*first, *second], request.context.settings.limits)
            pairs = [
                PooledInput(two.place, TextPair(str(one.value), str(two.value)))
                for one, two in zip(firsts, second, strict=True)
            ]
            params = PoolingParams(request.task, use_activation=use_activation)
            return cls(await PoolingRun.prepare(request, pairs, params), None)
        first, second = (
            with_instruction(request, texts, name) for texts, name in zip((first, second), instructions, strict=True)
        )
        run = await PoolingRun.prepare(request, [*first, *second], PoolingParams(request.task, use_activation=True))
        count = len(first)
        return cls(run, [(index % count, count + index) for index in range(len(second))])

    async def scores(self) -> list[float]:
        """Of each pair, in their order."""
        outputs, pairs = await self._run.outputs(), self._pairs
        if pairs is None:
            return [float(output[0]) for output in outputs]
        compare = _cosine if self._run.request.task == "embed" else _max_similarity

        def compared() -> list[float]:
            return [compare(outputs[one], outputs[two]) for one, two in pairs]

        assembly = self._run.request.context.assembly
        return compared() if self._run.num_numbers <= _FEW else await assembly.run(compared)

    def usage(self) -> TokenUsage:
        return self._run.usage()


def _check_one_label(request: PoolingRequest) -> None:
    labels = len(request.pooler.labels)
    if labels > 1:
        text = f"This model has {labels} labels, and a score is that of a single one; use /classify."
        raise RequestError(text, param="model")


def _cosine(first: Array, second: Array) -> float:
    """first, second: [numbers] of length 1."""
    return float(first @ second)


def _max_similarity(first: Array, second: Array) -> float:
    """first, second: [tokens, numbers], each row of length 1."""
    return float((first @ second.T).max(axis=1).sum())
