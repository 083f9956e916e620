"""A platform with a kernel for an op that a plugin brings, where it is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.platform import OpSet, replace
from tessera.testing import ReferencePlatform

SOFTENING = "tests.platforms.softening:SofteningPlatform"


class SofteningPlatform(ReferencePlatform):
    """softened: times its kernel ran."""

    softened = 0

    def ops(self, reference: OpSet) -> OpSet:
        return replace(reference, soften=self._soften) if "soften" in reference.names() else reference

    def _soften(self, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        self.softened += 1
        return torch.mul(torch.tanh(x / spec.cap), spec.cap, out=out)
