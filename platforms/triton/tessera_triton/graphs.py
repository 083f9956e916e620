"""Captured launches, and the shapes that they are captured in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tessera.platform import (
    BucketedShapes,
    CrossSpec,
    Device,
    DeviceGraph,
    FullAndPiecewiseGraphs,
    GraphRunner,
    ModelFacts,
    graph_class,
)

if TYPE_CHECKING:
    from tessera.config import EngineConfig

FEW, STEP, MANY = (1, 2, 4), 8, 256
"""Rows of captured decode launches: these, multiples of STEP up to MANY, and beyond it eighths of a power of two, so
that at most an eighth of the rows is padding. Fewer graphs take less memory and a shorter start, and pad more rows;
which is best has not been measured."""

MIXED = (16, 32, 64, 128, 256, 384, 512)
"""Tokens of captured launches with prompts. Up to 256 tokens a product takes as long as reading its weights does, so
sizes may double. Beyond it padding costs time, and beyond 512 the host is done long before the device."""


def graphs(torch: Any, device: Device, kind: str) -> GraphRunner | None:
    """None if this torch cannot capture what is launched on that kind of device."""
    if graph_class(torch, kind) is None:
        return None
    return FullAndPiecewiseGraphs(torch, device, lambda pool: DeviceGraph(torch, kind, pool=pool))


def rows(max_requests: int) -> list[int]:
    """The numbers of rows of captured launches, for up to `max_requests`."""
    numbers, last = [few for few in FEW if few < max_requests], 0
    while (last := last + (STEP if last < MANY else (1 << last.bit_length() - 1) // 8)) < max_requests:
        numbers.append(last)
    return [*numbers, max_requests]


def mixed_tokens(model: ModelFacts, config: EngineConfig) -> Sequence[int]:
    """The tokens of captured launches with prompts; none where nothing is captured, or where launches write what an
    encoder made, of as many positions as it has."""
    crossed = any(isinstance(layer.spec, CrossSpec) for layer in model.caches)
    if config.enforce_eager or crossed or not model.generates:
        return ()
    return [size for few, size in pairwise((0, *MIXED)) if few < config.scheduler.max_num_batched_tokens]


def shapes(model: ModelFacts, config: EngineConfig, block_size: int) -> BucketedShapes:
    """Launches that decode have padded rows, and those with few tokens of prompts padded tokens, so that they can be
    captured; those with more have their exact shape."""
    blocks = -(-config.model.max_model_len // block_size)
    scheduler = config.scheduler
    return BucketedShapes(
        rows(scheduler.max_num_seqs),
        blocks=(blocks,),
        mixed_tokens=mixed_tokens(model, config),
        max_decode_tokens=scheduler.max_decode_tokens,
    )
