"""Platforms that compile and keep what they compiled: a kernel and a graph runner at op depth, and a runner."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

from tessera.platform import (
    Artifacts,
    BoundOps,
    Device,
    Eager,
    Kernel,
    LoadedModel,
    MemoryBudget,
    ModelRunner,
    NormSpec,
    OpSet,
    RunnerServices,
    replace,
)
from tessera.testing import ReferencePlatform
from tests.platforms.generated import numpy_package

PATH = "tests.platforms.compiling"
numpy_package()
NumpyPlatform: Any = import_module("tessera_numpy.platform").NumpyPlatform
NumpyRunner: Any = import_module("tessera_numpy.runner").NumpyRunner
COMPILED: list[str] = [""]
"""What was compiled since a test cleared it."""


def program(artifacts: Artifacts, source: str) -> bytes:
    """Compiled if no earlier start did."""
    found = artifacts.get(source)
    if found is None:
        COMPILED.append(source)
        found = f"{source} for {sys.byteorder} endian".encode()
        artifacts.put(source, found)
    return found


class Norm(Kernel[NormSpec]):
    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> Any:
        assert program(device.artifacts, f"norm of {spec}").startswith(b"norm of ")

        def norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            wide = x.float()
            scale = (wide.square().mean(-1, keepdim=True) + spec.eps).rsqrt()
            result = (wide * scale * (weight.float() + spec.offset)).to(x.dtype)
            return result if out is None else out.copy_(result)

        return norm


class Compiling(ReferencePlatform):
    name = "compiling"

    def ops(self, reference: OpSet) -> OpSet:
        return replace(reference, rms_norm=Norm())

    def graph_runner(self, device: Device) -> Eager:
        assert program(device.artifacts, "graphs")
        return Eager()


class CompilingRunner(NumpyPlatform):
    """Keeps the frequencies of its rotary embeddings."""

    class Runner(NumpyRunner):
        def load(self, budget: MemoryBudget) -> LoadedModel:
            loaded = super().load(budget)
            assert program(self.services.artifacts, f"Llama of {self.model.layers} layers")
            file = self.services.artifacts.folder("tables") / "frequencies.npy"
            if not file.exists():
                COMPILED.append("frequencies")
                np.save(file, self.model.theta ** (-np.arange(0, self.model.dim, 2) / self.model.dim))
            return loaded

    def runner(self, services: RunnerServices) -> ModelRunner:
        return self.Runner(services)
