"""How much the cache may take: granted by configuration, never by measuring what happens to be free at the moment of
allocation."""

from __future__ import annotations

from tessera.config import EngineConfig
from tessera.errors import MemoryBudgetError
from tessera.platform.device import MemoryFigures
from tessera.platform.model import ModelFacts
from tessera.platform.runner import MemoryBudget

HOST_CACHE_LIMIT = 4 << 30
HOST_CACHE_SHARE = 0.4


def budget(config: EngineConfig, before: MemoryFigures) -> MemoryBudget:
    """What this engine may have on one device. before: the device before anything was loaded."""
    total = before.free if before.host else int(before.total * config.cache.memory_utilization)
    return MemoryBudget(total=total, kv=config.cache.memory_bytes)


def cache_bytes(
    config: EngineConfig, granted: MemoryBudget, figures: MemoryFigures, weights: int, workspace: int
) -> int:
    """Bytes for the KV cache on one device. Where memory is the host's: the smaller of 4 GiB and 40% of what is left
    after the weights, divided by the workers. Raises MemoryBudgetError where nothing is left."""
    left = granted.total - weights - workspace
    if granted.kv is not None:
        return granted.kv
    if figures.host:
        return int(min(HOST_CACHE_LIMIT, HOST_CACHE_SHARE * max(left, 0))) // config.parallel.world_size
    if left <= 0:
        raise MemoryBudgetError(
            f"the weights take {weights / 2**30:.1f} GiB of the {granted.total / 2**30:.1f} GiB granted and leave "
            "nothing for the KV cache;"
            " raise --gpu-memory-utilization, lower --max-num-batched-tokens or use more devices."
        )
    return left


def activation_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    """An upper bound on what a step's tensors take: float32 rows of about sixteen hidden sizes a token, and the logits
    of all rows twice."""
    tokens, rows = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    return tokens * facts.hidden_size * 16 * 4 + rows * facts.vocab_size * 8
