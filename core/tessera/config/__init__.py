"""Configuration: frozen dataclasses, validated once; the one reader of the environment."""

from __future__ import annotations

from tessera.config.build import build_config
from tessera.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig

__all__ = ["CacheConfig", "EngineConfig", "ModelConfig", "ParallelConfig", "SchedulerConfig", "build_config"]
