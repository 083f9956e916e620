"""The encoding of an image or a sound, part by part. transformers' code makes features in one call, which runs in a
greenlet here and can be left before each product: it keeps its frames, and runs on the thread of the steps like them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Protocol

from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from tessera.models.through_transformers.surgery import BoundConvolution, BoundPatches, BoundProduct


class WorkMeter:
    """Sees each product of a tower before it is computed. Its work is as many numbers as its weights have, since most
    products of a tower have equally many rows. listener: called with it, if there is one."""

    def __init__(self, tower: nn.Module) -> None:
        self.listener: Callable[[int], None] | None = None
        # By modality, of the encoding that ended last.
        self._work_by_modality: dict[str, int] = {}
        # Of all products, each computed once.
        self._all = 0
        for module in tower.modules():
            work = _work(module)
            if work:
                self._all += work
                module.register_forward_pre_hook(partial(self._before, work))

    def expected(self, modality: str) -> int:
        """The work of an encoding."""
        return self._work_by_modality.get(modality, self._all)

    def learn(self, modality: str, work: int) -> None:
        """work: of an encoding that ended."""
        self._work_by_modality[modality] = work

    def _before(self, work: int, module: nn.Module, arguments: object) -> None:
        if self.listener is not None:
            self.listener(work)


class MeteredTower(Protocol):
    meter: WorkMeter

    def encode(self, modality: str, inputs: Mapping[str, Tensor]) -> Tensor: ...


class PartialEncoding:
    """inputs: what the processor made of an image or a sound, by name. One that is given up is dropped with its last
    reference."""

    def __init__(self, tower: MeteredTower, modality: str, inputs: Mapping[str, Tensor]) -> None:
        self._meter, self._modality = tower.meter, modality
        self._call = greenlet(partial(tower.encode, modality, inputs))
        self._work, self._limit = 0, 0.0
        self._features: Tensor | None = None

    def advance(self, share: float) -> Tensor | None:
        """Goes on until this share of all work is done: to the end, if it is 1. Returns the features once they are
        there."""
        if self._features is not None:
            return self._features
        self._limit = inf if share >= 1 else share * self._meter.expected(self._modality)
        self._call.parent = getcurrent()
        self._meter.listener = self._before
        try:
            made = self._call.switch()
        finally:
            self._meter.listener = None
        if self._call.dead:
            self._features = made
            self._meter.learn(self._modality, self._work)
        return self._features

    def _before(self, work: int) -> None:
        """Called in the greenlet."""
        while self._work >= self._limit:
            self._call.parent.switch()
        self._work += work


def _work(module: nn.Module) -> int:
    if isinstance(module, BoundProduct | BoundConvolution | BoundPatches):
        return sum(spec.n * spec.k for spec in module.products.specs)
    return module.weight.numel() if isinstance(module, nn.Conv2d | nn.Conv3d) else 0
