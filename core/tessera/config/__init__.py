"""Configuration: frozen records whose fields are the flags, and the only code that reads the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig, Supervision

if TYPE_CHECKING:
    from tessera.config.build import build_config

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "Supervision",
    "build_config",
]


def __getattr__(name: str) -> Any:
    """Imports build_config, and the code that reads model folders, on first use: `tessera serve` starts the engine's
    process first and only needs the records until then."""
    if name == "build_config":
        from tessera.config.build import build_config

        return build_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
