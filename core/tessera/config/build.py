"""Turns flags into an EngineConfig: the one place where values are resolved and validated."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tessera.config.engine import (
    ENGINE_FLAGS,
    CacheConfig,
    EngineConfig,
    LoraConfig,
    ModelOptions,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from tessera.config.environment import default_threads
from tessera.config.flags import check_names, given_values, record_of
from tessera.config.kv_events import FLAG as EVENTS
from tessera.config.kv_events import kv_events_config
from tessera.config.kv_transfer import FLAG as TRANSFER
from tessera.config.kv_transfer import kv_transfer_config
from tessera.config.locate import is_on_hub
from tessera.config.model import model_config
from tessera.errors import ConfigError

log = logging.getLogger(__name__)

# Choosing a platform is a layer above configuration, so it is reached by name, like executors.
SELECT_PLATFORM = "tessera.plugins:select"


def build_config(model: str | Path | None = None, **flags: Any) -> EngineConfig:
    """Builds the engine's configuration.

    model: a local folder, or a Hub repository to download; None is the bundled demo. flags: ENGINE_FLAGS by name, where
    None means "not given". platform may also be a dotted path, "package.module:Class". Raises TypeError for an unknown
    name, ConfigError, ModelError or PlatformError.
    """
    check_names("build_config", flags, ENGINE_FLAGS)
    # Check everything that does not need the model before downloading gigabytes.
    values = given_values(ENGINE_FLAGS, flags)
    options, name = record_of(ModelOptions, ENGINE_FLAGS, values), None if model is None else str(model)
    if options.trust_remote_code:
        log.warning(
            "trust_remote_code has no effect: code from a model's folder is never run, since it could do anything on "
            "this machine; the model is served if Tessera knows its architecture"
        )
    lora = _lora(values)
    # This includes the platform: without one the model cannot run.
    chosen = _platform(values.get("platform")) if name is not None and is_on_hub(name) else None
    served = model_config(name, options, values)
    path, levels = chosen or _platform(values.get("platform"))
    if any(name == served.served_name for name, _ in lora.modules):
        raise ConfigError(f"lora_modules: '{served.served_name}' is the model's own name.", param="lora_modules")
    given = {flag.path for flag in ENGINE_FLAGS if flag.path and flag.name in values}
    if lora.enable and "lora" not in values.get("features", ()):
        values["features"] = (*values.get("features", EngineConfig.features), "lora")
    if served.modalities or served.source_text is not None:
        own = ("media", "transcription") if served.speech is not None and served.speech.timed else ("media",)
        # First, wherever they are named: media wraps the model itself, and not what other features make of it.
        others = [name for name in values.get("features", EngineConfig.features) if name not in own]
        values["features"] = (*own, *others)
    return record_of(
        EngineConfig,
        ENGINE_FLAGS,
        values,
        model=served,
        cache=_cache(values),
        scheduler=_scheduler(values, served.max_model_len),
        parallel=parallel_config(values),
        lora=lora,
        platform=path,
        platform_levels=levels,
        explicit_fields=frozenset(given if model is None else {*given, "model.path"}),
    )


def _cache(values: Mapping[str, Any]) -> CacheConfig:
    if EVENTS in values:
        events = kv_events_config(values[EVENTS])
        if events is not None and not values.get("enable_prefix_caching", True):
            raise ConfigError(
                f"{EVENTS} publishes what the prefix cache has; leave it on, or remove this.", param=EVENTS
            )
        values = {**values, EVENTS: events}
    if TRANSFER in values:
        if values.get("check_kv_cache"):
            raise ConfigError(
                f"{TRANSFER} writes into the cache what check_kv_cache has not seen computed; leave out one of them.",
                param=TRANSFER,
            )
        transfer = kv_transfer_config(values[TRANSFER], has_key=bool(values.get("cluster_key_file")))
        values = {**values, TRANSFER: transfer}
    return record_of(CacheConfig, ENGINE_FLAGS, values)


def parallel_config(values: Mapping[str, Any]) -> ParallelConfig:
    """values: from given_values(). Raises ConfigError."""
    config = record_of(ParallelConfig, ENGINE_FLAGS, values)
    if config.expert_parallel and config.tensor_parallel_size == 1:
        raise ConfigError(
            "enable_expert_parallel divides experts among as many devices as tensor_parallel_size says, which is 1; "
            "raise it, or remove this.",
            param="enable_expert_parallel",
        )
    if config.nnodes > 1:
        _check_hosts(config)
    if config.threads is not None:
        return config
    return replace(config, threads=max(1, default_threads() // (config.host_size * config.data_parallel_size)))


def _check_hosts(config: ParallelConfig) -> None:
    """Raises ConfigError."""
    if config.world_size % config.nnodes:
        raise ConfigError(
            f"{config.world_size} devices cannot be divided among {config.nnodes} hosts; tensor_parallel_size times "
            "pipeline_parallel_size must be a multiple of nnodes.",
            param="nnodes",
        )
    if config.data_parallel_size > 1:
        raise ConfigError(
            "data_parallel_size is of one host: start a server for each replica, and tessera router in front of them.",
            param="data_parallel_size",
        )
    if not config.master_addr:
        raise ConfigError("nnodes above 1 needs master_addr, the address of host 0.", param="master_addr")
    if config.node_rank >= config.nnodes:
        raise ConfigError(f"node_rank must be below nnodes, which is {config.nnodes}.", param="node_rank")


def _lora(values: Mapping[str, Any]) -> LoraConfig:
    """Enabled also if --features names it."""
    given = values.get("lora_modules", ())
    enabled = bool(values.get("enable_lora")) or "lora" in values.get("features", ())
    for name in ("lora_modules", "max_loras", "max_lora_rank"):
        if name in values and not enabled:
            raise ConfigError(f"{name} needs enable_lora.", param=name)
    if enabled and values.get("pipeline_parallel_size", 1) > 1:
        raise ConfigError("enable_lora does not support pipeline_parallel_size above 1.", param="enable_lora")
    modules = tuple(map(_module, given))
    names = [name for name, _ in modules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"lora_modules: the name '{name[:80]}' is used twice.", param="lora_modules")
    return record_of(LoraConfig, ENGINE_FLAGS, values, enable=enabled, modules=modules)


def _module(text: str) -> tuple[str, str]:
    """Name and folder of an adapter, from NAME=FOLDER or, as in vLLM, {"name": NAME, "path": FOLDER}."""
    name, _, folder = text.partition("=")
    if text.startswith("{"):
        try:
            fields = msgspec.json.decode(text, type=dict[str, str | None])
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"lora_modules: '{text[:80]}' is not a JSON object of texts.", param="lora_modules"
            ) from error
        name, folder = fields.get("name") or "", fields.get("path") or ""
    if not name or not folder:
        raise ConfigError(f"lora_modules: '{text[:80]}' is not NAME=FOLDER.", param="lora_modules")
    return name, str(Path(folder).expanduser().absolute())


def _scheduler(values: Mapping[str, Any], max_model_len: int) -> SchedulerConfig:
    """The token budget, unless given, is raised to the minimum that a step needs."""
    if "speculative_config" in values:
        if values.get("pipeline_parallel_size", 1) > 1:
            raise ConfigError(
                "speculative_config does not work with pipeline_parallel_size yet; leave out one of them.",
                param="speculative_config",
            )
        values = {**values, "speculative_config": _speculative(values["speculative_config"])}
    config = record_of(SchedulerConfig, ENGINE_FLAGS, values)
    rows, budget = config.max_num_seqs, config.max_num_batched_tokens
    least = rows if config.chunked_prefill else max(rows, max_model_len)
    if "max_num_batched_tokens" not in values:
        return replace(config, max_num_batched_tokens=max(budget, least))
    if budget < rows:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}, but each of max_num_seqs={rows} requests needs one token per step; "
            "raise the former or lower the latter.",
            param="max_num_batched_tokens",
        )
    if budget < least:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}, but without chunked prefill a step must hold a whole prompt of "
            f"max_model_len={max_model_len}; raise it.",
            param="max_num_batched_tokens",
        )
    return config


_MOST_DRAFTS = 32
_LONGEST_LOOKUP = 64


def _speculative(value: Any) -> SpeculativeConfig:
    """As vLLM reads it: of prompt_lookup_min and prompt_lookup_max, the one that is absent equals the other."""
    name = "speculative_config"
    known = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a JSON object with the keys {', '.join(known)}.", param=name)
    for key in value.keys() - set(known):
        raise ConfigError(f"{name} does not support the key '{key}'; it takes {', '.join(known)}.", param=name)
    if value.get("method") != "ngram":
        raise ConfigError(f'{name}: the only method is "ngram"; set "method": "ngram".', param=name)
    most = _whole(value, "num_speculative_tokens", _MOST_DRAFTS)
    if most is None:
        raise ConfigError(f"{name}: num_speculative_tokens is missing; 4 is a good start.", param=name)
    low, high = (_whole(value, f"prompt_lookup_{end}", _LONGEST_LOOKUP) for end in ("min", "max"))
    low, high = low or high or SpeculativeConfig.prompt_lookup_min, high or low or SpeculativeConfig.prompt_lookup_max
    if low > high:
        raise ConfigError(f"{name}: prompt_lookup_min is {low}, above prompt_lookup_max, {high}.", param=name)
    return SpeculativeConfig("ngram", most, low, high)


def _whole(fields: Mapping[str, Any], key: str, high: int) -> int | None:
    value = fields.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high):
        raise ConfigError(
            f"speculative_config: {key} must be a whole number from 1 to {high}.", param="speculative_config"
        )
    return value


def _platform(name: str | None) -> tuple[str, dict[str, int]]:
    """Dotted path of the Platform class, and the API levels it was written for, if a manifest names them."""
    if name is not None and ":" in name:
        return name, {}
    module, _, function = SELECT_PLATFORM.partition(":")
    select: Callable[[str | None], Any] = getattr(importlib.import_module(module), function)
    selected = select(name)
    return str(selected.platform), dict(selected.levels)
