"""How well two texts belong together, by the kind of model: one that reads both at once says it; of one that embeds
texts it is the cosine of their vectors, or the product of sparse ones; and of one that embeds tokens, how much each
token of the first has its like in the second (ColBERT's MaxSim)."""

from __future__ import annotations

import msgspec

from tessera.arrays import Array
from tessera.config.pooler import PoolerConfig, PoolingTask
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams

SCORING_TASKS: tuple[PoolingTask, ...] = ("classify", "embed", "token_embed")
"""Those that score texts; the first that a model has is used."""
READS_PAIRS = "classify"
"""The one whose prompts are pairs of texts."""


def check_one_label(pooler: PoolerConfig) -> None:
    """For a model that reads pairs. Raises RequestError."""
    if len(pooler.labels) > 1:
        text = f"This model has {len(pooler.labels)} labels, and a score is that of a single one; use /classify."
        raise RequestError(text, param="model")


def scoring_task(pooler: PoolerConfig | None) -> PoolingTask:
    """What a model scores texts by. Raises RequestError if it does not."""
    tasks = () if pooler is None else pooler.tasks
    task = next((task for task in SCORING_TASKS if task in tasks), None)
    if pooler is None or task is None:
        text = "This model does not score texts; use one that embeds or has one label, or convert='embed'."
        raise RequestError(text, param="model")
    if task == READS_PAIRS:
        check_one_label(pooler)
    return task


def scoring_params(pooler: PoolerConfig, task: PoolingTask, params: PoolingParams | None = None) -> PoolingParams:
    """params: the client's, of which the activation is that of a model that reads pairs; vectors always have the length
    1, but for sparse ones, which were trained to be multiplied as they are."""
    params = params or PoolingParams()
    activation = params.use_activation if task == READS_PAIRS else not pooler.sparse
    return msgspec.structs.replace(params, task=task, dimensions=None, use_activation=activation)


def similarity(task: PoolingTask, first: Array, second: Array) -> float:
    """first, second: [numbers] of the task embed, or [tokens, numbers] of token_embed."""
    products = first @ second.T
    return float(products if task == "embed" else products.max(axis=1).sum())
