"""Where weights come from as the configuration says, and the dtype they get."""

from __future__ import annotations

from tessera.config import EngineConfig
from tessera.errors import PlatformError
from tessera.loader.checkpoint import Dummy, Safetensors, WeightSource
from tessera.platform.platform import Capabilities


def open_source(config: EngineConfig) -> WeightSource:
    """Where a configuration's weights come from. Raises ModelError."""
    return Dummy(config.seed) if config.model.load_format == "dummy" else Safetensors(config.model.path)


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
