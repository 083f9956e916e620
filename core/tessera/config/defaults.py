"""A platform's defaults for fields that the user did not set. The engine process and every worker apply the same ones,
as soon as the model's facts are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tessera.errors import ConfigError, PlatformError

if TYPE_CHECKING:
    from tessera.config.engine import EngineConfig
    from tessera.platform.platform import Default

OPEN = ("scheduler.", "cache.block_size", "cache.prefix_caching")
"""Prefixes of the fields that have not been read at that point."""


def fill_defaults(
    config: EngineConfig, defaults: Mapping[str, Default], *, chunkable: bool = True
) -> tuple[EngineConfig, list[str]]:
    """The configuration with a platform's defaults ("scheduler.max_num_seqs") for fields that the user did not set, and
    a log line for each. chunkable: ModelFacts.chunkable; without, prompts are not split and a step has room for the
    longest. Raises PlatformError, and ConfigError where the user has set less room."""
    notes = []
    for path, default in defaults.items():
        filled = _replaced(config, path.split("."), default.value, path)
        if not path.startswith(OPEN):
            raise PlatformError(
                f"The platform sets a default for '{path}', which is read before platform defaults are known; update "
                "its package."
            )
        if path not in config.explicit_fields:
            config = filled
            notes.append(f"{path} = {default.value}: {default.reason}")
    return _coherent(config if chunkable else _with_whole_prompts(config), notes)


def _with_whole_prompts(config: EngineConfig) -> EngineConfig:
    """For a model that reads a prompt in one step. Raises ConfigError if the user has set less room in a step."""
    scheduler, longest = config.scheduler, config.model.max_model_len
    path = "scheduler.max_num_batched_tokens"
    if path in config.explicit_fields and scheduler.max_num_batched_tokens < longest:
        raise ConfigError(
            f"This model reads a text of up to {longest} tokens in one step, but --max-num-batched-tokens is "
            f"{scheduler.max_num_batched_tokens}; raise it, or lower --max-model-len.",
            param=path,
        )
    return dataclasses.replace(config, scheduler=dataclasses.replace(scheduler, chunked_prefill=False))


def _coherent(config: EngineConfig, notes: list[str]) -> tuple[EngineConfig, list[str]]:
    """A step holds a token of each request, and without chunked prefill a whole prompt. Where a default does not go
    with what the user set, the user's holds."""
    scheduler, explicit = config.scheduler, config.explicit_fields
    rows, budget = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    if "scheduler.max_num_batched_tokens" not in explicit:
        budget = max(budget, rows if scheduler.chunked_prefill else max(rows, config.model.max_model_len))
        reason = "a step holds a token of each request, and without chunked prefill a prompt"
    elif rows > budget:
        rows, reason = budget, "a step of max_num_batched_tokens holds a token of each request"
    for name, value in (("max_num_seqs", rows), ("max_num_batched_tokens", budget)):
        if value != getattr(scheduler, name):
            notes = [note for note in notes if not note.startswith(f"scheduler.{name} = ")]
            notes.append(f"scheduler.{name} = {value}: {reason}")
    filled = dataclasses.replace(scheduler, max_num_seqs=rows, max_num_batched_tokens=budget)
    return dataclasses.replace(config, scheduler=filled), notes


def _replaced(record: Any, names: list[str], value: Any, path: str) -> Any:
    if not dataclasses.is_dataclass(record) or not hasattr(record, names[0]):
        raise PlatformError(
            f"The platform sets a default for '{path}', which is no field of the configuration; update its package."
        )
    if len(names) > 1:
        value = _replaced(getattr(record, names[0]), names[1:], value, path)
    return dataclasses.replace(record, **{names[0]: value})  # type: ignore[type-var]  # it is a dataclass, by the check above
