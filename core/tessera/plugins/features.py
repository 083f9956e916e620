"""Creates the halves of the features that `--features` names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from tessera.errors import PlatformError
from tessera.platform import EngineFeature, Feature, WorkerFeature
from tessera.plugins.contract import check_members
from tessera.plugins.paths import load_path

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.plugins.registry import Registry


def engine_features(config: EngineConfig, registry: Registry) -> list[EngineFeature]:
    """The halves of the engine's process, in the order of `--features`. Raises ConfigError, PlatformError."""
    return list(_halves(config, registry, "engine"))


def worker_features(config: EngineConfig, registry: Registry) -> list[WorkerFeature]:
    """The halves of a worker, in the order of `--features`. Raises ConfigError, PlatformError."""
    return list(_halves(config, registry, "worker"))


def _halves(config: EngineConfig, registry: Registry, half: Literal["engine", "worker"]) -> Iterator[Any]:
    for entry in config.features:
        name, _, option = entry.partition("=")
        if entry == "none":
            continue
        path = registry.features.resolve(name)
        feature = load_path(path)
        if not isinstance(feature, Feature):
            raise PlatformError(f"feature '{name}': {path} is no tessera.platform.Feature; name an object that is one.")
        factory: str = getattr(feature, half)
        if factory:
            made = load_path(factory)(config, option)
            check_members([made])
            yield made
