"""Platforms whose check() finds problems, at op depth, at runner depth and on fakechip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera.platform import Default, ModelFacts, Problem, RunnerServices
from tessera.testing import ReferencePlatform
from tests.platforms.generated import numpy_package

if TYPE_CHECKING:
    from tessera.config import EngineConfig

PATH = "tests.platforms.refusing"
numpy_package()
NumpyPlatform: Any = import_module("tessera_numpy.platform").NumpyPlatform
FakechipPlatform: Any = import_module("tessera_fakechip.platform").FakechipPlatform


class _Refusing:
    """Proposes three rows, and takes neither these nor the model."""

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        return {"scheduler.max_num_seqs": Default(3, "three are enough")}

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        rows = Problem(f"{config.scheduler.max_num_seqs} rows are too many; set --max-num-seqs 2.")
        return (rows, Problem(f"{model.num_layers} layers are too many."))


class Refusing(_Refusing, ReferencePlatform):
    name = "refusing"


class RefusingRunner(_Refusing, NumpyPlatform):
    """At runner depth."""


class _Unasked:
    """Services that accept nothing, as for a runner that does not know accept()."""

    def __init__(self, services: RunnerServices) -> None:
        self._services = services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)

    def accept(self, facts: ModelFacts) -> None:
        """Does nothing."""


class RefusingLate(RefusingRunner):  # type: ignore[misc]  # its base is generated
    """Its runner does not accept its facts."""

    def runner(self, services: RunnerServices) -> Any:
        return super().runner(_Unasked(services))


class OneChipAlone(FakechipPlatform):
    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        return [Problem("it runs on one device alone.")] if config.parallel.world_size > 1 else []
