"""Where weights come from as the configuration says, and the dtype they get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tessera.config import EngineConfig
from tessera.config.model_folder import is_gguf
from tessera.errors import PlatformError
from tessera.loader.checkpoint import Safetensors, WeightSource
from tessera.loader.gguf import GgufWeights
from tessera.loader.random_weights import Dummy
from tessera.platform.device import Device
from tessera.platform.platform import Capabilities

CheckpointWeights = Safetensors | GgufWeights
"""The sources that are checkpoints, whose weights have names."""


def open_checkpoint(path: str, modules: Sequence[str] = (), tower: str = "") -> CheckpointWeights:
    """path: a model's folder or GGUF file. modules: as of Safetensors. tower: as of GgufWeights. Raises ModelError."""
    return GgufWeights(path, tower) if is_gguf(Path(path)) else Safetensors(path, modules)


def open_source(config: EngineConfig, device: Device) -> WeightSource:
    """Where a configuration's weights come from. device: that loads them. Raises ModelError."""
    if config.model.load_format == "dummy":
        return Dummy(config.seed, device.target if device.eager else None)
    pooler = config.model.pooler
    dense = () if pooler is None else pooler.dense
    return open_checkpoint(config.model.path, [one.name for one in dense if not one.inside], config.model.mmproj)


def resolve_dtype(dtype: str, checkpoint: str, capabilities: Capabilities) -> str:
    """The dtype of weights and activations: the user's, else the checkpoint's if the platform supports it, else the
    platform's first. A float32 checkpoint also gets the platform's first, since float32 is rarely
    needed. Raises PlatformError if the platform does not support the user's dtype."""
    if dtype != "auto":
        if dtype not in capabilities.dtypes:
            raise PlatformError(
                f"dtype {dtype} is not available on this platform; --dtype takes {', '.join(capabilities.dtypes)}."
            )
        return dtype
    return checkpoint if checkpoint in capabilities.dtypes and checkpoint != "float32" else capabilities.dtypes[0]
