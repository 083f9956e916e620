"""The texts and images that LLM.score() compares, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.config.pooler import PoolingTask
from tessera.engine.scoring import similarity
from tessera.errors import RequestError
from tessera.llm.inputs import has_media, prompt_with_media
from tessera.llm.media import MediaTaken, PromptWithMedia
from tessera.request import PoolingRequestOutput, ScoringOutput, ScoringRequestOutput
from tessera.text_pair import TextPair

Scored = str | PromptWithMedia


def texts_to_score(data_1: Any, data_2: Any, taken: MediaTaken) -> tuple[list[Scored], list[Scored]]:
    """The first texts or images, one or as many as the second, and the second. Raises RequestError."""
    first, second = _texts("data_1", data_1, taken), _texts("data_2", data_2, taken)
    if len(first) not in (1, len(second)):
        text = f"data_1 must be one text or as many as data_2, got {len(first)} and {len(second)}."
        raise RequestError(text, param="data_1")
    return first, second


def _texts(name: str, data: Any, taken: MediaTaken) -> list[Scored]:
    texts = [data] if isinstance(data, str | Mapping) else list(data) if isinstance(data, Sequence) else []
    if not texts or not all(has_media(text) or (isinstance(text, str) and text) for text in texts):
        raise RequestError(
            f"{name} must be a text or a list of texts, none of them empty; one with images is "
            '{"prompt": ..., "multi_modal_data": ...}.',
            param=name,
        )
    return [text if isinstance(text, str) else prompt_with_media(text, taken) for text in texts]


def pairs_of(first: Sequence[Scored], second: Sequence[Scored]) -> list[TextPair]:
    """For a model that reads both at once. Raises RequestError for images."""
    pairs = [(first[index % len(first)], two) for index, two in enumerate(second)]
    if any(isinstance(text, PromptWithMedia) for pair in pairs for text in pair):
        raise RequestError("This model reads pairs of texts; an image is of no pair.", param="data_2")
    return [TextPair(str(one), str(two)) for one, two in pairs]


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
