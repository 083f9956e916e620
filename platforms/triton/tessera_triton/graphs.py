"""Captured launches, and the shapes that they are captured in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.platform import BucketedShapes, Device, DeviceGraph, GraphRunner, ShapePolicy, TorchGraphs, graph_class

if TYPE_CHECKING:
    from tessera.config import EngineConfig

FEW, STEP, MANY = (1, 2, 4), 8, 256
"""Rows of captured decode launches: these, multiples of STEP up to MANY, and beyond it eighths of a power of two, so
that at most an eighth of the rows is padding. Fewer graphs take less memory and a shorter start, and pad more rows;
which is best has not been measured."""


def graphs(torch: Any, device: Device, kind: str) -> GraphRunner | None:
    """None if this torch cannot capture what is launched on that kind of device."""
    if graph_class(torch, kind) is None:
        return None
    return TorchGraphs(torch, device, lambda pool: DeviceGraph(torch, kind, pool=pool))


def rows(most: int) -> list[int]:
    """The numbers of rows of captured launches, for up to `most` requests."""
    found, last = [few for few in FEW if few < most], 0
    while (last := last + (STEP if last < MANY else (1 << last.bit_length() - 1) // 8)) < most:
        found.append(last)
    return [*found, most]


def shapes(config: EngineConfig, block_size: int) -> ShapePolicy:
    """Decode launches are padded, so that they can be captured; launches with prompts have their exact shape."""
    blocks = -(-config.model.max_model_len // block_size)
    scheduler = config.scheduler
    return BucketedShapes(rows(scheduler.max_num_seqs), blocks=(blocks,), max_decode_tokens=scheduler.max_decode_tokens)
