"""Pooling parameters: what a request wants of a model that answers with numbers. Names are vLLM's where it has the same
field. Checks that depend on the model are made when the request is built (engine/input_processor.py)."""

from __future__ import annotations

import msgspec

from tessera.config.pooler import TASKS, PoolerConfig, PoolingTask
from tessera.errors import RequestError

MAX_DIMENSIONS = 2**16


class PoolingParams(msgspec.Struct, frozen=True, array_like=True):
    """Raises RequestError for a field outside its bounds."""

    task: PoolingTask = "embed"
    # Of the vector, from its first number on; None for all that the model gives.
    dimensions: int | None = None
    # Whether vectors are normalized and numbers of labels become probabilities; None: as the model was made.
    use_activation: bool | None = None
    # As SamplingParams.truncate_prompt_tokens and truncation_side; None: a prompt that is too long is refused.
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None

    def __post_init__(self) -> None:
        if self.task not in (*TASKS, "align"):
            raise RequestError(f"task must be one of {', '.join(TASKS)}.", param="task")
        if self.dimensions is not None and not 1 <= self.dimensions <= MAX_DIMENSIONS:
            raise RequestError(f"dimensions must be 1 to {MAX_DIMENSIONS}, got {self.dimensions}.", param="dimensions")


class RequestPooling(msgspec.Struct, frozen=True, array_like=True):
    """What the engine needs to know of a request that pools."""

    task: PoolingTask = "embed"
    # Whether the head takes the states of several tokens: none of them may then come from the prefix cache, which has
    # keys and values, but no states.
    every_token: bool = False
    # The position of the first token that is pooled: those before it are an instruction that only the others see.
    start: int = 0

    @classmethod
    def from_config(cls, pooler: PoolerConfig, task: PoolingTask, start: int = 0) -> RequestPooling:
        """Of a model that pools like this. start: of the first token behind an instruction."""
        every_token = task in ("token_embed", "token_classify", "align") or pooler.pooling != "last"
        return cls(task, every_token, 0 if pooler.include_prompt else start)
