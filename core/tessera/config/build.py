"""From flags to an EngineConfig: the one place where values are resolved and checked."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tessera.config.capacity import cache_config, parallel_config, scheduler_config
from tessera.config.engine import EngineConfig
from tessera.config.locate import HubAccess, is_on_hub
from tessera.config.model import model_config

log = logging.getLogger(__name__)

# Choosing among the installed platforms stands above configuration, so it is reached by name, as executors are.
SELECT_PLATFORM = "tessera.plugins:select"

_FIELDS = {
    "model": "model.path",
    "served_model_name": "model.served_name",
    "tokenizer": "model.tokenizer",
    "skip_tokenizer_init": "model.tokenizer",
    "dtype": "model.dtype",
    "quantization": "model.quantization",
    "max_model_len": "model.max_model_len",
    "load_format": "model.load_format",
    "max_logprobs": "model.max_logprobs",
    "generation_config": "model.sampling_defaults",
    "override_generation_config": "model.sampling_defaults",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "threads": "parallel.threads",
    "gpu_memory_utilization": "cache.memory_utilization",
    "kv_cache_memory_bytes": "cache.memory_bytes",
    "kv_cache_dtype": "cache.dtype",
    "block_size": "cache.block_size",
    "enable_prefix_caching": "cache.prefix_caching",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler.chunked_prefill",
    "scheduling_policy": "scheduler.policy",
    "max_waiting": "scheduler.max_waiting",
    "max_num_queued_tokens": "scheduler.max_num_queued_tokens",
    "watermark": "scheduler.watermark",
    "steps_in_flight": "scheduler.depth",
    "enforce_eager": "enforce_eager",
    "no_fallback": "no_fallback",
    "seed": "seed",
    "platform": "platform",
}
"""The field of EngineConfig that each flag sets."""


def build_config(
    *,
    model: str | None = None,
    served_model_name: str | None = None,
    tokenizer: str | None = None,
    skip_tokenizer_init: bool | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    max_model_len: int | None = None,
    load_format: str | None = None,
    max_logprobs: int | None = None,
    generation_config: str | None = None,
    override_generation_config: str | Mapping[str, Any] | None = None,
    tensor_parallel_size: int | None = None,
    threads: int | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
    enable_prefix_caching: bool | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    enable_chunked_prefill: bool | None = None,
    scheduling_policy: str | None = None,
    max_waiting: int | None = None,
    max_num_queued_tokens: int | None = None,
    watermark: float | None = None,
    steps_in_flight: int | None = None,
    enforce_eager: bool | None = None,
    no_fallback: bool | None = None,
    seed: int | None = None,
    platform: str | None = None,
    revision: str | None = None,
    tokenizer_revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | None = None,
    trust_remote_code: bool | None = None,
) -> EngineConfig:
    """The engine's configuration from values named as vLLM's flags; None is "not given".

    model: a local folder, or a repository of the hub, which is fetched; None is the bundled demo. platform: the name of
    an installed one, or "package.module:Class"; None lets the probes decide.
    quantization: "int8" or "int4", of weights as they are loaded. kv_cache_dtype: of keys and values, "auto" (the
    model's) or "int8". threads: of each worker on the host.
    max_waiting: requests that may wait; max_num_queued_tokens: tokens of their prompts. watermark: share of the KV
    cache's blocks that stays free when a request starts beside others. max_logprobs: of a token, -1 the whole
    vocabulary's. generation_config: whose sampling defaults hold, "auto" (the model's), "none" or a folder;
    override_generation_config: further ones, as JSON or a mapping. steps_in_flight: 1 or 2 and so on; None is the
    device's choice. Raises ConfigError, ModelError, PlatformError.
    """
    given = _fields_of(locals())
    _warn_of_remote_code(trust_remote_code)
    parallel = parallel_config(tensor_parallel_size, threads)
    # That nothing here can run a model is said before gigabytes of it are fetched.
    chosen = _platform(platform) if model is not None and is_on_hub(model) else None
    served = model_config(
        model,
        hub=HubAccess(revision, tokenizer_revision, hf_token, download_dir),
        served_name=served_model_name,
        tokenizer=tokenizer,
        skip_tokenizer=bool(skip_tokenizer_init),
        dtype=dtype or "auto",
        quantization=quantization,
        load_format=load_format or "auto",
        max_model_len=max_model_len,
        seed=0 if seed is None else seed,
        max_logprobs=20 if max_logprobs is None else max_logprobs,
        generation_config=generation_config,
        override=override_generation_config,
    )
    cache = cache_config(
        gpu_memory_utilization, kv_cache_memory_bytes, block_size, enable_prefix_caching, kv_cache_dtype
    )
    scheduler = scheduler_config(
        max_num_seqs=max_num_seqs,
        token_budget=max_num_batched_tokens,
        chunked=enable_chunked_prefill,
        policy=scheduling_policy,
        max_waiting=max_waiting,
        max_queued=max_num_queued_tokens,
        watermark=watermark,
        depth=steps_in_flight,
        max_model_len=served.max_model_len,
    )
    path, levels = chosen or _platform(platform)
    return EngineConfig(
        model=served,
        cache=cache,
        scheduler=scheduler,
        parallel=parallel,
        enforce_eager=bool(enforce_eager),
        no_fallback=bool(no_fallback),
        seed=served.seed,
        platform=path,
        platform_levels=levels,
        given=given,
    )


def _fields_of(flags: Mapping[str, Any]) -> frozenset[str]:
    """The fields that the user set himself."""
    return frozenset(_FIELDS[name] for name, value in flags.items() if name in _FIELDS and value is not None)


def _warn_of_remote_code(trust: bool | None) -> None:
    if trust:
        log.warning(
            "trust_remote_code changes nothing: code from a model's folder is never run, since it could do anything on "
            "this machine; the model is served if Tessera knows its architecture"
        )


def _platform(name: str | None) -> tuple[str, dict[str, int]]:
    """Dotted path of the Platform class, and the API levels that it was written for, where a manifest says so."""
    if name is not None and ":" in name:
        return name, {}
    module, _, function = SELECT_PLATFORM.partition(":")
    select: Callable[[str | None], Any] = getattr(importlib.import_module(module), function)
    selected = select(name)
    return str(selected.platform), dict(selected.levels)
