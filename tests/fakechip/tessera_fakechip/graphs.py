"""Captured launches, and the shapes that they are captured in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from tessera.platform import BucketedShapes, Device, GraphRunner, ShapePolicy, TorchGraphs
from tessera_fakechip.attention import BLOCK

if TYPE_CHECKING:
    from tessera.config import EngineConfig

SHAPES = BucketedShapes(decode_rows=(1, 3, 12), prompt_tokens=(16, 72), chunk_multiple=8)


def graphs(device: Device) -> GraphRunner | None:
    return TorchGraphs(torch, device, lambda pool: torch.get_device_module("fakechip").Graph())


def shapes(config: EngineConfig) -> ShapePolicy | None:
    blocks = -(-config.model.max_model_len // BLOCK)
    return dataclasses.replace(SHAPES, blocks=(blocks,), max_decode_tokens=config.scheduler.max_decode_tokens)
