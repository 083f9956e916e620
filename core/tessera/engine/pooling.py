"""What a request that pools may still choose once the engine has its numbers: how many of them, and what makes vectors
of length 1 or probabilities of them."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tessera.arrays import Array
from tessera.config import ModelConfig
from tessera.config.pooler import PoolerConfig, PoolingTask
from tessera.engine.model_tasks import check_pools
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams

P = TypeVar("P")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VECTORS = ("embed", "token_embed")


def check_pooling(params: PoolingParams, model: ModelConfig) -> PoolerConfig:
    """Returns the model's pooler. Raises RequestError if it has none, or not for this task or number of dimensions."""
    pooler = model.pooler
    if pooler is None or params.task not in pooler.tasks:
        check_pools(model, [params.task])
    assert pooler is not None, "it has been checked that the model pools"
    if params.dimensions is not None:
        _check_dimensions(params.dimensions, params.task, pooler)
    return pooler


def _check_dimensions(dimensions: int, task: PoolingTask, pooler: PoolerConfig) -> None:
    most, some = pooler.dimensions, pooler.matryoshka
    if task not in _VECTORS:
        raise RequestError("dimensions are of vectors; leave them out.", param="dimensions")
    if dimensions > most:
        raise RequestError(f"dimensions is {dimensions}, but this model's vectors have {most}.", param="dimensions")
    if some is not None and dimensions != most and dimensions not in some:
        sizes = ", ".join(map(str, (*some, most)))
        raise RequestError(
            f"dimensions is {dimensions}, but this model's vectors were made for {sizes}; choose one of them.",
            param="dimensions",
        )


def of_steps(values: Array, tokens: Sequence[int], params: PoolingParams, pooler: PoolerConfig) -> Array:
    """Of a model that judges the steps of a solution, those of the tokens behind them. values [tokens, numbers]: of the
    prompt's last tokens, if not of all."""
    if pooler.step_token is None or params.task != "token_classify":
        return values
    steps: Array = values[np.asarray(tokens[len(tokens) - len(values) :]) == pooler.step_token]
    return steps


def activated(values: Array, params: PoolingParams, pooler: PoolerConfig) -> Array:
    """values [..., numbers] float32 of the model's head, as the request wants them."""
    if params.task in _VECTORS:
        values = values[..., : params.dimensions]
        return _normalized(values) if _wanted(params, pooler.normalize) else values
    if not _wanted(params, True):
        return values
    if pooler.activation == "sigmoid":
        return np.exp(-np.logaddexp(np.float32(0), -values))
    return _softmax(values) if pooler.activation == "softmax" else values


def _wanted(params: PoolingParams, default: bool) -> bool:
    return default if params.use_activation is None else params.use_activation


def _normalized(values: Array) -> Array:
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    result: Array = values / np.maximum(lengths, np.float32(1e-12))
    return result


def _softmax(values: Array) -> Array:
    weights = np.exp(values - values.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


class TextMessage(NamedTuple):
    """A text that the model's chat template writes."""

    messages: Sequence[Mapping[str, str]]
    # Arguments of ChatJob.
    options: Mapping[str, Any]


def instructed(prompt: P, pooler: PoolerConfig | None) -> P | str | TextMessage:
    """A text with the model's default instruction in front, if it has one, and what stands around every text, or as a
    message where the model was trained on them; what is no text stays as it is."""
    if pooler is None or not isinstance(prompt, str):
        return prompt
    instruction = "" if pooler.default_prompt is None else pooler.prompts[pooler.default_prompt]
    if pooler.message is not None:
        return message_of(prompt, instruction, pooler.message)
    return around(prompt, instruction, pooler)


def around(text: str, instruction: str, pooler: PoolerConfig) -> str:
    """A text as the model reads it, with what stands around it."""
    before, behind = pooler.around
    if pooler.lower:
        text = text.lower()
    if pooler.canonical:
        text = " ".join(text.lower().translate(_NO_PUNCTUATION).split())
    return f"{before}{instruction}{text}{behind}"


def message_of(text: str, instruction: str, template: Mapping[str, Any]) -> TextMessage:
    """template: PoolerConfig.message."""
    messages = [{"role": "system", "content": instruction}] if instruction else []
    asks = template.get("add_generation_prompt", False)
    others = {name: value for name, value in template.items() if name != "add_generation_prompt"}
    return TextMessage(
        [*messages, {"role": "user", "content": text}], {"add_generation_prompt": asks, "template_kwargs": others}
    )
