"""The texts that LLM.score() compares, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.engine.scoring import similarity
from tessera.errors import RequestError
from tessera.pooling_params import PoolingTask
from tessera.request import PoolingRequestOutput, ScoringOutput, ScoringRequestOutput


def texts_to_score(data_1: Any, data_2: Any) -> tuple[list[str], list[str]]:
    """The first texts, one or as many as the second, and the second. Raises RequestError."""
    first, second = _texts("data_1", data_1), _texts("data_2", data_2)
    if len(first) not in (1, len(second)):
        text = f"data_1 must be one text or as many as data_2, got {len(first)} and {len(second)}."
        raise RequestError(text, param="data_1")
    return first, second


def _texts(name: str, data: Any) -> list[str]:
    texts = [data] if isinstance(data, str) else list(data) if isinstance(data, Sequence) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"{name} must be a text or a list of texts, none of them empty.", param=name)
    return texts


@contextmanager
def numbered(name: str) -> Iterator[None]:
    """Errors about a text, as TextWorkers names it, name it as one of this list."""
    try:
        yield
    except RequestError as error:
        if error.param is None or not error.param.startswith("prompt["):
            raise
        place = error.param.replace("prompt", name, 1)
        raise type(error)(f"{place}: {error.message}", param=place, code=error.code) from error


def numbered_pairs(num_first: int, num_second: int) -> list[tuple[int, int]]:
    """The pairs, by their places among first and second texts, one behind the other."""
    return [(index % num_first, num_first + index) for index in range(num_second)]


def scored(
    task: PoolingTask, outputs: Sequence[PoolingRequestOutput], pairs: Sequence[tuple[int, int]] | None
) -> list[ScoringRequestOutput]:
    """pairs: of outputs, by their numbers; None if each output is a score itself."""
    if pairs is None:
        return [
            ScoringRequestOutput(one.request_id, ScoringOutput(float(one.outputs.data[0])), one.prompt_token_ids)
            for one in outputs
        ]
    found = []
    for one, two in ((outputs[first], outputs[second]) for first, second in pairs):
        score = similarity(task, one.outputs.data, two.outputs.data)
        ids = [*one.prompt_token_ids, *two.prompt_token_ids]
        found.append(ScoringRequestOutput(two.request_id, ScoringOutput(score), ids))
    return found
