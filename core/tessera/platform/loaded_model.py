"""What loading a model says about it: its facts, what its caches need, and the memory it takes. It crosses from a
worker to the engine whole, apart from the layouts of caches, which are functions of the worker's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.errors import MemoryBudgetError
from tessera.platform.attention import CacheSpec, KVLayout
from tessera.platform.explain import Explained
from tessera.platform.model import LayerCache, ModelFacts


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes granted to this engine on each device of a worker: as many as on the one with the least."""

    # In total.
    total: int
    # For the KV cache, if the user set it.
    kv: int | None = None

    def remaining(self, weight_bytes: int, workspace_bytes: int) -> int:
        """Bytes left for the KV cache. Raises MemoryBudgetError if there are none."""
        remaining = self.total - weight_bytes - workspace_bytes
        if remaining <= 0:
            raise MemoryBudgetError(
                f"the weights take {weight_bytes / 2**30:.1f} GiB and a step's workspace {workspace_bytes / 2**30:.1f} "
                f"GiB of the {self.total / 2**30:.1f} GiB granted, which leaves nothing for the KV cache; raise "
                "--gpu-memory-utilization, lower --max-num-batched-tokens or use more devices."
            )
        return remaining


@dataclass(frozen=True)
class CacheNeeds:
    """What one layer's cache needs, for the solver of cache groups."""

    layer: int
    spec: CacheSpec
    # As in CacheConstraints.
    block_sizes: tuple[int, ...]
    # As in CacheConstraints.
    block_multiple: bool
    # As in Capabilities.
    index_dtype: str
    # As in CacheConstraints.
    align_bytes: int
    # The KVLayout for a block size, and so the bytes of a block.
    layout: Callable[[int], KVLayout]
    # As in CacheConstraints.
    dense_planes: bool = False
    # Each plane is a tensor of its own, which shares memory with no other.
    separate_planes: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """The result of load(). All bytes are per device: if a worker has several, of the one that holds the most and has
    the least left."""

    facts: ModelFacts
    # By layer; the layouts are of a device's share.
    needs: tuple[CacheNeeds, ...]
    weight_bytes: int
    # Left for the KV cache.
    cache_bytes: int
    # The device's name, shown to users.
    device: str = ""
    # Ops and kinds of attention that run on the reference.
    fallbacks: tuple[str, ...] = ()
    # Of the device, which this engine may use in total; 0 if a runner does not say.
    granted_bytes: int = 0
    # Of those granted, which a step and captured graphs may take; 0 if a runner does not say.
    workspace_bytes: int = 0
    # Names of the numbers that features keep for each row and that requests may set.
    columns: tuple[str, ...] = ()
    # Which implementation runs what.
    choices: tuple[Explained, ...] = ()
    # Parameters of the checkpoint that the weights stand for; 0 if a runner does not say.
    num_weights: int = 0
    # Fields of SamplingParams that requests to this runner must not use.
    unsupported: tuple[str, ...] = ()
    # Inputs and outputs of the model's linear layers over all devices, by name in the checkpoint; only if a feature has
    # a worker half.
    linear_layers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Towers that encode at once, each another image: the workers of the first stage, where each has the whole tower.
    num_towers: int = 1


def merge_ranks(ranks: Sequence[LoadedModel]) -> LoadedModel:
    """The part of a model that a pipeline stage has, from what its workers say, who differ in figures alone."""
    num_weights = max(rank.num_weights for rank in ranks)
    return replace(ranks[0], num_weights=num_weights, **_tightest_figures(ranks))


def merge_stages(stages: Sequence[LoadedModel]) -> LoadedModel:
    """The whole model: the caches of all layers, the choices of all stages, and the memory of the stage with the most
    weights and the least left for the cache."""
    if len(stages) == 1:
        return stages[0]
    heaviest = max(stages, key=lambda stage: stage.weight_bytes)
    specs = [cache.spec for stage in stages for cache in stage.facts.caches]
    caches = tuple(LayerCache(number, spec) for number, spec in enumerate(specs))
    notes = dict.fromkeys(note for stage in stages for note in stage.facts.notes)
    return replace(
        heaviest,
        facts=replace(heaviest.facts, caches=caches, notes=tuple(notes)),
        num_towers=stages[0].num_towers,
        fallbacks=tuple(sorted({name for stage in stages for name in stage.fallbacks})),
        choices=tuple(dict.fromkeys(choice for stage in stages for choice in stage.choices)),
        **_tightest_figures(stages),
    )


def _tightest_figures(parts: Sequence[LoadedModel]) -> Mapping[str, Any]:
    """Bytes that hold on every device."""
    return {
        "weight_bytes": max(part.weight_bytes for part in parts),
        "cache_bytes": min(part.cache_bytes for part in parts),
        "granted_bytes": min(part.granted_bytes for part in parts),
        "workspace_bytes": max(part.workspace_bytes for part in parts),
    }
