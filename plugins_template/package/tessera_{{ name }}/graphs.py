"""Captured launches, and the shapes that they are captured in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platform import Device, GraphRunner, ShapePolicy

if TYPE_CHECKING:
    from tessera.config import EngineConfig


def graphs(device: Device) -> GraphRunner | None:
    """None: every launch runs eagerly. TorchGraphs(torch, device) captures launches; its third argument names the graph
    class of a device whose graphs are not torch.accelerator's. CompiledGraphs(torch, device, "mychip") compiles them
    ahead of time with a backend of torch.compile, for a device whose programs have fixed shapes."""
    return None


def shapes(config: EngineConfig) -> ShapePolicy | None:
    """None: launches have their exact shapes, so none can be captured. BucketedShapes(decode_rows=(1, 2, 4, 8, 16, 32))
    pads decode launches to these numbers of rows; blocks=(...) must be enough for config.model.max_model_len. If all
    shapes must be fixed, BucketedShapes.doubling(config, block_size, prompt_tokens) lists a few."""
    return None
