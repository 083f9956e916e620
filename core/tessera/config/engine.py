"""The engine's configuration: frozen, validated once where it is made (config/build.py), plain data that crosses a
process as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """What is served. path: the model's folder. checkpoint: its config.json. dtype: "auto" or a torch name.
    quantization: of weights as they are loaded, "int8", "int4" or None.
    eos_token_ids end an answer. max_model_len: most tokens of prompt and answer together. tokenizer: folder of the
    tokenizer, "" where none is loaded. max_logprobs: a request may have of a token, -1 the whole vocabulary's.
    sampling_defaults: what the model's authors recommend, for requests that do not say, by the names of
    SamplingParams."""

    path: str
    served_name: str
    checkpoint: dict[str, Any]
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"  # "auto", "safetensors" or "dummy"
    tokenizer: str = ""
    seed: int = 0
    max_logprobs: int = 20
    sampling_defaults: dict[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheConfig:
    """block_size: None lets the backends choose. memory_bytes: of the KV cache; None: what the device's memory allows.
    memory_utilization: share of a device's memory the engine may use, where the memory is the device's own. dtype: of
    keys and values, "auto" (the model's) or "int8"."""

    block_size: int | None = None
    memory_bytes: int | None = None
    memory_utilization: float = 0.92
    prefix_caching: bool = True
    dtype: str = "auto"


@dataclass(frozen=True)
class SchedulerConfig:
    """max_num_seqs: rows that run at once. max_num_batched_tokens: the token budget of a step, at least max_num_seqs.
    depth: steps in flight; None: what the device allows. max_waiting: requests that may wait; max_num_queued_tokens:
    tokens of their prompts, None: no limit. watermark: share of the KV cache's blocks that is kept free when a request
    starts beside others, from 0 to below 1."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    policy: str = "fcfs"
    depth: int | None = None
    max_waiting: int = 4096
    max_num_queued_tokens: int | None = None
    watermark: float = 0.01


@dataclass(frozen=True)
class ParallelConfig:
    """threads: of each worker on the host; None lets the platform choose."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    threads: int | None = None

    @property
    def world_size(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class EngineConfig:
    """platform: dotted path of the Platform class ("package.module:Name"). platform_levels: API levels of facets that
    it was written for; those that are missing are core's. features: dotted paths of factories (config)
    -> Feature. plugins: modules of further plugins to load, by name. embedded: the engine lives in a user's own
    process, where nothing process-wide may be changed. given: names of the values the user set himself, as dotted field
    paths; the others are defaults. folder: of whoever starts the engine's processes, who removes it with all in it; ""
    is none. log_format: of their log, "text" or "json"."""

    model: ModelConfig
    platform: str
    platform_levels: dict[str, int] = field(default_factory=dict)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    features: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    embedded: bool = False
    enforce_eager: bool = False
    no_fallback: bool = False
    seed: int = 0
    given: frozenset[str] = frozenset()
    folder: str = ""
    log_format: str = "text"
