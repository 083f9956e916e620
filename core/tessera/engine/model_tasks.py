"""What a model can be asked for, and what whoever asks it for something else is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from tessera.config import ModelConfig
from tessera.config.pooler import PoolingTask
from tessera.errors import RequestError

T = TypeVar("T", bound=str)
GENERATE = "generate"
TRANSCRIBE = "transcribe"
TRANSLATE = "translate"
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        GENERATE: "generate text",
        TRANSCRIBE: "write down speech",
        TRANSLATE: "translate speech",
        "embed": "embed texts",
        "classify": "classify texts",
        "token_embed": "embed tokens",
        "token_classify": "classify tokens",
        "align": "align texts with sounds",
    }
)
_CONVERTED = ("embed", "token_embed")
"""What any model that generates does too under --convert embed."""
NO_ROUTES: Mapping[str, str] = MappingProxyType({})


def tasks_of(model: ModelConfig) -> list[str]:
    """GENERATE, TRANSCRIBE and TRANSLATE, and those of PoolingTask."""
    if model.speech is not None:
        return [TRANSCRIBE, TRANSLATE] if model.speech.translates else [TRANSCRIBE]
    pools = [] if model.pooler is None else list(model.pooler.tasks)
    return [*([GENERATE] if model.generates else []), *pools]


def check_generates(model: ModelConfig, routes: Mapping[str, str] = NO_ROUTES) -> None:
    """routes: by task, those that have it, if an error shall name them. Raises RequestError."""
    _first(model, [GENERATE], routes)


def check_samples(model: ModelConfig) -> None:
    """Whether tokens can be sampled from it, whatever for. Raises RequestError."""
    if model.speech is None:
        check_generates(model)


def check_hears(model: ModelConfig, task: str, routes: Mapping[str, str] = NO_ROUTES) -> None:
    """task: TRANSCRIBE or TRANSLATE. routes: as of check_generates(). Raises RequestError."""
    _first(model, [task], routes)


def check_pools(
    model: ModelConfig, tasks: Sequence[PoolingTask], routes: Mapping[str, str] = NO_ROUTES
) -> PoolingTask:  # fmt: skip
    """The first of the tasks that the model has. routes: as of check_generates(). Raises RequestError if it has
    none."""
    return _first(model, tasks, routes)


def _first(model: ModelConfig, tasks: Sequence[T], routes: Mapping[str, str]) -> T:
    has = tasks_of(model)
    for task in tasks:
        if task in has:
            return task
    lacks = _WORDS[tasks[0]]
    flag = f" To make it {lacks} too, start it with --convert embed."
    does = " and ".join(_WORDS[task] + (f" ({routes[task]})" if task in routes else "") for task in has)
    raise RequestError(
        f"This model does not {lacks}; it can {does}." + (flag if tasks[0] in _CONVERTED and has == [GENERATE] else ""),
        param="model",
    )
