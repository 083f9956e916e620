"""What a model can be asked for, and what a client is told that asks it for something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tessera.config import ModelConfig
from tessera.config.pooler import PoolingTask
from tessera.errors import RequestError

GENERATE = "generate"
_DOES: Mapping[str, str] = MappingProxyType(
    {
        GENERATE: "generates text (/v1/chat/completions)",
        "embed": "embeds texts (/v1/embeddings)",
        "classify": "classifies texts (/classify, and /rerank and /score if it has one label)",
        "token_embed": "embeds tokens (/pooling)",
        "token_classify": "classifies tokens (/pooling)",
    }
)
"""What each task is, with the routes that have it."""
_WANTS: Mapping[str, str] = MappingProxyType(
    {
        "embed": "embed texts",
        "classify": "classify texts",
        "token_embed": "embed tokens",
        "token_classify": "classify tokens",
    }
)
_CONVERTED = ("embed", "token_embed")
"""What any model that generates does too under --convert embed."""


def tasks_of(model: ModelConfig) -> list[str]:
    """GENERATE, and those of PoolingTask."""
    pools = [] if model.pooler is None else list(model.pooler.tasks)
    return [*([GENERATE] if model.generates else []), *pools]


def check_generates(model: ModelConfig) -> None:
    """Raises RequestError."""
    if not model.generates:
        raise RequestError(f"This model does not generate text; it {_description(tasks_of(model))}.", param="model")


def check_pools(model: ModelConfig, tasks: Sequence[PoolingTask]) -> PoolingTask:
    """The first of the tasks that the model has. Raises RequestError if it has none."""
    for task in tasks:
        if model.pooler is not None and task in model.pooler.tasks:
            return task
    wanted, has = tasks[0], tasks_of(model)
    flag = f" To make it {_WANTS[wanted]} too, start the server with --convert embed."
    raise RequestError(
        f"This model does not {_WANTS[wanted]}; it {_description(has)}."
        + (flag if wanted in _CONVERTED and has == [GENERATE] else ""),
        param="model",
    )


def _description(tasks: Sequence[str]) -> str:
    return " and ".join(_DOES[task] for task in tasks)
