"""How much an engine takes of a machine, and how its requests share it: cache, scheduler and workers."""

from __future__ import annotations

from tessera.config.checks import MAX_TOKENS, one_of, within
from tessera.config.engine import CacheConfig, ParallelConfig, SchedulerConfig
from tessera.config.environment import default_threads
from tessera.errors import ConfigError

MAX_SEQS = 2**16
MAX_WORKERS = 1024
MAX_BYTES = 2**50
_KV_DTYPES = {"auto": "auto", "int8": "int8", "int8_per_token_head": "int8"}


def cache_config(
    utilization: float | None,
    memory_bytes: int | None,
    block_size: int | None,
    prefix_caching: bool | None,
    dtype: str | None,
) -> CacheConfig:
    defaults = CacheConfig()
    if utilization is not None and not 0 < utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization must be above 0 and at most 1, got {utilization:g}.",
            param="gpu_memory_utilization",
        )
    if dtype is not None:
        one_of("kv_cache_dtype", dtype, tuple(_KV_DTYPES))
    return CacheConfig(
        block_size=None if block_size is None else within("block_size", block_size, 1, 4096),
        memory_bytes=None if memory_bytes is None else within("kv_cache_memory_bytes", memory_bytes, 1, MAX_BYTES),
        memory_utilization=defaults.memory_utilization if utilization is None else utilization,
        prefix_caching=defaults.prefix_caching if prefix_caching is None else prefix_caching,
        dtype=defaults.dtype if dtype is None else _KV_DTYPES[dtype],
    )


def scheduler_config(
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
    rows = within("max_num_seqs", defaults.max_num_seqs if max_num_seqs is None else max_num_seqs, 1, MAX_SEQS)
    chunked = defaults.chunked_prefill if chunked is None else chunked
    least = rows if chunked else max(rows, max_model_len)
    if token_budget is None:
        token_budget = max(defaults.max_num_batched_tokens, least)
    within("max_num_batched_tokens", token_budget, 1, MAX_TOKENS)
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
        depth=None if depth is None else within("steps_in_flight", depth, 1, 8),
        max_waiting=within("max_waiting", defaults.max_waiting if max_waiting is None else max_waiting, 1, 2**20),
        max_num_queued_tokens=None if max_queued is None else within("max_num_queued_tokens", max_queued, 1, 2**40),
        watermark=defaults.watermark if watermark is None else watermark,
    )


def parallel_config(tensor: int | None, threads: int | None) -> ParallelConfig:
    size = within("tensor_parallel_size", 1 if tensor is None else tensor, 1, MAX_WORKERS)
    if threads is None:
        threads = max(1, default_threads() // size)
    return ParallelConfig(tensor_parallel_size=size, threads=within("threads", threads, 1, 4096))
