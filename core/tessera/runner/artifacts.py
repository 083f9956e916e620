"""Where a platform's artifacts are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import entry_points, version

import torch

from tessera.config import EngineConfig
from tessera.config.environment import artifacts_folder
from tessera.hookspecs import PROJECT
from tessera.platform.artifacts import Artifacts
from tessera.platform.device import Device
from tessera.platform.platform import Platform


def artifacts_of(config: EngineConfig, platform: Platform, devices: Sequence[Device]) -> Artifacts:
    """The artifacts of a worker. Their folder is named after all that could make an entry of another start wrong."""
    package = config.platform.partition(":")[0].partition(".")[0]
    found = {entry.dist for entry in entry_points(group=PROJECT) if entry.module.partition(".")[0] == package}
    versions = sorted(f"{dist.name} {dist.version}" for dist in found if dist is not None)
    said = [*versions, f"tessera-llm {version('tessera-llm')}", f"torch {torch.__version__}", config.platform]
    said += [f"{device.name} {device.target}" for device in devices]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", platform.name) or "_"
    return Artifacts(artifacts_folder(), f"{readable}-{sha256(chr(0).join(said).encode()).hexdigest()[:24]}")
