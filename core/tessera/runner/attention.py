"""The attention layers and other mixers of a model that was built: the caches that they need, if any, and which of them
share a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.layers.build import BoundMixer
from tessera.platform.attention import NO_CACHE, AttentionGroup, MixerBackend, MixerSpec
from tessera.platform.device import Device
from tessera.platform.loaded_model import CacheNeeds
from tessera.platform.runner import CachePlan


def cache_needs(mixers: Sequence[BoundMixer], index_dtype: str, *, separate_planes: bool) -> list[CacheNeeds]:
    """Of each layer that has a cache. index_dtype: Capabilities.index_dtype. separate_planes:
    GraphRunner.separate_planes."""
    needs = []
    for bound in mixers:
        cache = bound.spec.cache
        if cache is None:
            continue
        constraints = bound.backend.constraints(bound.spec)
        needs.append(
            CacheNeeds(
                layer=bound.spec.layer,
                spec=cache,
                block_sizes=constraints.block_sizes,
                block_multiple=constraints.block_multiple,
                index_dtype=index_dtype,
                align_bytes=constraints.align_bytes,
                layout=partial(bound.backend.kv_cache_layout, cache),
                dense_planes=constraints.dense_planes,
                separate_planes=separate_planes,
            )
        )
    return needs


def attention_groups(
    mixers: Sequence[BoundMixer], plan: CachePlan, device: Device
) -> list[tuple[MixerBackend[Any], AttentionGroup]]:
    """The layers that share a plan, with their backend."""
    number_of = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
    alike: dict[tuple[int, str, MixerSpec], list[BoundMixer]] = {}
    for bound in mixers:
        key = number_of.get(bound.spec.layer, NO_CACHE), bound.backend.name, replace(bound.spec, layer=0)
        alike.setdefault(key, []).append(bound)
    groups = []
    for (number, name, _), members in alike.items():
        layers = tuple(bound.spec.layer for bound in members)
        group = AttentionGroup(members[0].spec, layers, number, f"{name}{layers[0]}", device)
        groups.append((members[0].backend, group))
    return groups


def groups_with_host_tables(mixers: Sequence[BoundMixer], plan: CachePlan) -> Collection[int]:
    """The cache groups of which a backend reads block tables on the host."""
    cached = [bound for bound in mixers if bound.spec.cache is not None]
    layers = {bound.spec.layer for bound in cached if bound.backend.constraints(bound.spec).host_tables}
    return [number for number, group in enumerate(plan.groups) if layers.intersection(group.layers)]
