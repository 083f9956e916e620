"""Captured launches, and the shapes that they are captured in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.platform import BucketedShapes, Device, GraphRunner, ShapePolicy, TorchGraphs

if TYPE_CHECKING:
    from tessera.config import EngineConfig

FEW, STEP = (1, 2, 4), 8
"""Rows of captured decode launches: these, and multiples of STEP. Fewer graphs take less memory and a shorter start,
and pad more rows; which is best has not been measured."""


class DeviceGraph:
    """A graph of torch.cuda or torch.xpu, which captures on a stream of its own. torch.accelerator has graphs from 2.13
    on only."""

    def __init__(self, torch: Any, kind: str, pool: Any) -> None:
        self.graph = graph_class(torch, kind)()
        self.capture = getattr(torch, kind).graph(self.graph, pool=pool)
        self.replay, self.pool = self.graph.replay, self.graph.pool

    def __enter__(self) -> None:
        self.capture.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.capture.__exit__(*raised)


def graph_class(torch: Any, kind: str) -> Any:
    """CUDAGraph of torch.cuda, XPUGraph of torch.xpu; None if this torch has none for that kind of device."""
    return getattr(getattr(torch, kind, None), f"{kind.upper()}Graph", None)


def graphs(torch: Any, device: Device, kind: str) -> GraphRunner | None:
    """None if this torch cannot capture what is launched on that kind of device."""
    if graph_class(torch, kind) is None:
        return None
    return TorchGraphs(torch, device, lambda pool: DeviceGraph(torch, kind, pool))


def rows(most: int) -> list[int]:
    """The numbers of rows of captured launches, for up to `most` requests."""
    several = list(range(STEP, most, STEP))
    return [*(few for few in FEW if few < most), *several, most]


def shapes(config: EngineConfig, block_size: int) -> ShapePolicy:
    """Decode launches are padded, so that they can be captured; launches with prompts have their exact shape."""
    blocks = -(-config.model.max_model_len // block_size)
    scheduler = config.scheduler
    return BucketedShapes(rows(scheduler.max_num_seqs), blocks=(blocks,), max_decode_tokens=scheduler.max_decode_tokens)
