"""From flags to an EngineConfig: the one place where values are resolved and checked."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tessera.config.checkpoint import Checkpoint, eos_token_ids, find_folder, read_checkpoint
from tessera.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from tessera.config.environment import default_threads
from tessera.config.generation import generation_folder, sampling_defaults
from tessera.config.hub import HubAccess, fetch_model, is_on_hub
from tessera.config.tokenizer_folder import tokenizer_of_model
from tessera.errors import ConfigError, ModelError

log = logging.getLogger(__name__)

MAX_TOKENS = 2**24
MAX_SEQS = 2**16
MAX_WORKERS = 1024
MAX_BYTES = 2**50
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
DEMO = "tessera-demo"

# Choosing among the installed platforms stands above configuration, so it is reached by name, as executors are.
SELECT_PLATFORM = "tessera.plugins:select"

_SPELLINGS = {"half": "float16", "float": "float32"}
_FIELDS = {
    "model": "model.path",
    "served_model_name": "model.served_name",
    "tokenizer": "model.tokenizer",
    "skip_tokenizer_init": "model.tokenizer",
    "dtype": "model.dtype",
    "max_model_len": "model.max_model_len",
    "load_format": "model.load_format",
    "max_logprobs": "model.max_logprobs",
    "generation_config": "model.sampling_defaults",
    "override_generation_config": "model.sampling_defaults",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "threads": "parallel.threads",
    "gpu_memory_utilization": "cache.memory_utilization",
    "kv_cache_memory_bytes": "cache.memory_bytes",
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


def build_config(
    *,
    model: str | None = None,
    served_model_name: str | None = None,
    tokenizer: str | None = None,
    skip_tokenizer_init: bool | None = None,
    dtype: str | None = None,
    max_model_len: int | None = None,
    load_format: str | None = None,
    max_logprobs: int | None = None,
    generation_config: str | None = None,
    override_generation_config: str | Mapping[str, Any] | None = None,
    tensor_parallel_size: int | None = None,
    threads: int | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
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
    an installed one, or "package.module:Class"; None lets the probes decide. threads: of each worker on the host.
    max_waiting: requests that may wait; max_num_queued_tokens: tokens of their prompts. watermark: share of the KV
    cache's blocks that stays free when a request starts beside others. max_logprobs: of a token, -1 the whole
    vocabulary's. generation_config: whose sampling defaults hold, "auto" (the model's), "none" or a folder;
    override_generation_config: further ones, as JSON or a mapping. steps_in_flight: 1 or 2 and so on; None is the
    device's choice. Raises ConfigError, ModelError, PlatformError.
    """
    given = frozenset(_FIELDS[name] for name, value in locals().items() if name in _FIELDS and value is not None)
    if trust_remote_code:
        log.warning(
            "trust_remote_code changes nothing: code from a model's folder is never run, since it could do anything on "
            "this machine; the model is served if Tessera knows its architecture"
        )
    parallel = _parallel(tensor_parallel_size, threads)
    # That nothing here can run a model is said before gigabytes of it are fetched.
    chosen = _platform(platform) if model is not None and is_on_hub(model) else None
    model_config = _model(
        model,
        hub=HubAccess(revision, tokenizer_revision, hf_token, download_dir),
        served_name=served_model_name,
        tokenizer=tokenizer,
        skip_tokenizer=bool(skip_tokenizer_init),
        dtype=dtype or "auto",
        load_format=load_format or "auto",
        max_model_len=max_model_len,
        seed=_within("seed", 0 if seed is None else seed, 0, 2**64 - 1),
        max_logprobs=20 if max_logprobs is None else _within("max_logprobs", max_logprobs, -1, 2**31 - 1),
        generation_config=generation_config,
        override=override_generation_config,
    )
    return EngineConfig(
        model=model_config,
        cache=_cache(gpu_memory_utilization, kv_cache_memory_bytes, block_size, enable_prefix_caching),
        scheduler=_scheduler(
            max_num_seqs=max_num_seqs,
            token_budget=max_num_batched_tokens,
            chunked=enable_chunked_prefill,
            policy=scheduling_policy,
            max_waiting=max_waiting,
            max_queued=max_num_queued_tokens,
            watermark=watermark,
            depth=steps_in_flight,
            max_model_len=model_config.max_model_len,
        ),
        parallel=parallel,
        enforce_eager=bool(enforce_eager),
        no_fallback=bool(no_fallback),
        seed=model_config.seed,
        platform=chosen or _platform(platform),
        given=given,
    )


# ---- model -------------------------------------------------------------------


def demo_folder() -> Path:
    """The bundled demo model."""
    return Path(__file__).parents[1] / "demo"


def _model(
    model: str | None,
    *,
    hub: HubAccess,
    served_name: str | None,
    tokenizer: str | None,
    skip_tokenizer: bool,
    dtype: str,
    load_format: str,
    max_model_len: int | None,
    seed: int,
    max_logprobs: int,
    generation_config: str | None,
    override: str | Mapping[str, Any] | None,
) -> ModelConfig:
    _one_of("dtype", dtype, DTYPES)
    _one_of("load_format", load_format, LOAD_FORMATS)
    weights = load_format != "dummy"
    folder, name = _locate(model, hub, weights=weights, tokenizer=tokenizer is None and not skip_tokenizer)
    checkpoint = read_checkpoint(folder, weights=weights)
    tokenizer_folder = None if skip_tokenizer else tokenizer_of_model(folder, name, tokenizer, hub)
    recommended = generation_folder(generation_config, folder)
    return ModelConfig(
        path=str(folder.resolve()),
        served_name=_served_name(served_name or name),
        checkpoint=checkpoint.config,
        vocab_size=checkpoint.vocab_size,
        max_model_len=_max_model_len(checkpoint, max_model_len),
        eos_token_ids=eos_token_ids(checkpoint, tokenizer_folder, recommended),
        dtype=_SPELLINGS.get(dtype, dtype),
        load_format=load_format,
        tokenizer="" if tokenizer_folder is None else str(tokenizer_folder.resolve()),
        seed=seed,
        max_logprobs=max_logprobs,
        sampling_defaults=sampling_defaults(recommended, override),
    )


def _served_name(name: str) -> str:
    if len(name) > 256 or not name.isprintable():
        raise ConfigError("served_model_name must be at most 256 printable characters.", param="served_model_name")
    return name


def _locate(model: str | None, hub: HubAccess, *, weights: bool, tokenizer: bool) -> tuple[Path, str]:
    """The model's folder, fetched from the hub where need be, and its name."""
    if model is None:
        return demo_folder(), DEMO
    if is_on_hub(model):
        own = tokenizer and hub.tokenizer_revision is None
        return fetch_model(model, hub, weights=weights, tokenizer=own), model
    folder = find_folder(model)
    if hub.revision is not None:
        raise ConfigError(
            f"--revision is for models of the hub, but '{model}' is a local folder; leave it out.", param="revision"
        )
    return folder, folder.resolve().name


def _max_model_len(checkpoint: Checkpoint, asked: int | None) -> int:
    if asked is not None:
        _within("max_model_len", asked, 1, MAX_TOKENS)
    most = checkpoint.max_positions
    if most is None:
        if asked is None:
            raise ModelError(
                f"'{checkpoint.folder}' does not say how many tokens it was made for; give --max-model-len."
            )
        return asked
    allowed = checkpoint.most_positions or most
    if asked is not None and asked > allowed:
        raise ConfigError(
            f"max_model_len is {asked}, but the model was made for {allowed} tokens; give at most that.",
            param="max_model_len",
        )
    return min(most, MAX_TOKENS) if asked is None else asked


# ---- cache, scheduler, parallel, platform ------------------------------------


def _cache(
    utilization: float | None, memory_bytes: int | None, block_size: int | None, prefix_caching: bool | None
) -> CacheConfig:
    defaults = CacheConfig()
    if utilization is not None and not 0 < utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization must be above 0 and at most 1, got {utilization:g}.",
            param="gpu_memory_utilization",
        )
    return CacheConfig(
        block_size=None if block_size is None else _within("block_size", block_size, 1, 4096),
        memory_bytes=None if memory_bytes is None else _within("kv_cache_memory_bytes", memory_bytes, 1, MAX_BYTES),
        memory_utilization=defaults.memory_utilization if utilization is None else utilization,
        prefix_caching=defaults.prefix_caching if prefix_caching is None else prefix_caching,
    )


def _scheduler(
    *,
    max_num_seqs: int | None,
    token_budget: int | None,
    chunked: bool | None,
    policy: str | None,
    max_waiting: int | None,
    max_queued: int | None,
    watermark: float | None,
    depth: int | None,
    max_model_len: int,
) -> SchedulerConfig:
    defaults = SchedulerConfig()
    rows = _within("max_num_seqs", defaults.max_num_seqs if max_num_seqs is None else max_num_seqs, 1, MAX_SEQS)
    chunked = defaults.chunked_prefill if chunked is None else chunked
    least = rows if chunked else max(rows, max_model_len)
    if token_budget is None:
        token_budget = max(defaults.max_num_batched_tokens, least)
    _within("max_num_batched_tokens", token_budget, 1, MAX_TOKENS)
    if token_budget < rows:
        raise ConfigError(
            f"max_num_batched_tokens is {token_budget}, but each of max_num_seqs={rows} needs a token of the step; "
            "raise the one or lower the other.",
            param="max_num_batched_tokens",
        )
    if token_budget < least:
        raise ConfigError(
            f"max_num_batched_tokens is {token_budget}, but without chunked prefill a step must hold a whole prompt "
            f"of max_model_len={max_model_len}.",
            param="max_num_batched_tokens",
        )
    if watermark is not None and not 0 <= watermark < 1:
        raise ConfigError(f"watermark must be at least 0 and below 1, got {watermark:g}.", param="watermark")
    return SchedulerConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=token_budget,
        chunked_prefill=chunked,
        policy=policy or defaults.policy,
        depth=None if depth is None else _within("steps_in_flight", depth, 1, 8),
        max_waiting=_within("max_waiting", defaults.max_waiting if max_waiting is None else max_waiting, 1, 2**20),
        max_num_queued_tokens=None if max_queued is None else _within("max_num_queued_tokens", max_queued, 1, 2**40),
        watermark=defaults.watermark if watermark is None else watermark,
    )


def _parallel(tensor: int | None, threads: int | None) -> ParallelConfig:
    size = _within("tensor_parallel_size", 1 if tensor is None else tensor, 1, MAX_WORKERS)
    if threads is None:
        threads = max(1, default_threads() // size)
    return ParallelConfig(tensor_parallel_size=size, threads=_within("threads", threads, 1, 4096))


def _platform(name: str | None) -> str:
    """Dotted path of the Platform class."""
    if name is not None and ":" in name:
        return name
    module, _, function = SELECT_PLATFORM.partition(":")
    select: Callable[[str | None], Any] = getattr(importlib.import_module(module), function)
    return str(select(name).platform)


# ---- checks ------------------------------------------------------------------


def _within(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number.", param=name)
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, got {value}.", param=name)
    return value


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got '{value[:40]}'.", param=name)
