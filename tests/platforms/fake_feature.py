"""The least a feature can be: a column, a bit in the launch key, and a constant on some logits of rows that ask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.platform import CacheSpec, Column, Launch, Model

EVEN = "tests.platforms.fake_feature:Even"
BIT = "even"
COLUMN = "push"


class Even:
    """Adds a row's `push` to the logits of tokens with an even number. calls: of its methods in steps, by name."""

    def __init__(self, config: EngineConfig) -> None:
        self.calls: list[str] = []

    def columns(self) -> Sequence[Column]:
        return (Column(COLUMN, "float32"),)

    def cache_specs(self) -> Sequence[CacheSpec]:
        return ()

    def wrap(self, model: Model) -> Model:
        return model

    def keys(self) -> frozenset[str]:
        return frozenset((BIT,))

    def before(self, launch: Launch) -> None:
        self.calls.append("before")
        assert launch.columns[COLUMN].shape == launch.rows.shape

    def logits(self, launch: Launch, logits: Tensor) -> Tensor:
        self.calls.append("logits")
        even = torch.arange(logits.shape[-1], device=logits.device) % 2 == 0
        return logits + launch.columns[COLUMN][:, None] * even

    def after(self, launch: Launch, sampled: Tensor) -> None:
        self.calls.append("after")
        assert sampled.shape == launch.rows.shape
