"""A platform's defaults for fields that the user did not set. The engine process and every worker apply the same ones,
as soon as the model's facts are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tessera.errors import PlatformError

if TYPE_CHECKING:
    from tessera.config.engine import EngineConfig
    from tessera.platform.platform import Default

OPEN = ("scheduler.", "cache.block_size", "cache.prefix_caching")
"""Prefixes of the fields that have not been read at that point."""


def fill_defaults(config: EngineConfig, defaults: Mapping[str, Default]) -> tuple[EngineConfig, list[str]]:
    """The configuration with a platform's defaults ("scheduler.max_num_seqs") for fields that the user did not set, and
    a log line for each. Raises PlatformError."""
    notes = []
    for path, default in defaults.items():
        filled = _replaced(config, path.split("."), default.value, path)
        if not path.startswith(OPEN):
            raise PlatformError(
                f"The platform sets a default for '{path}', which is read before platform defaults are known; update "
                "its package."
            )
        if path not in config.explicit_fields:
            config = filled
            notes.append(f"{path} = {default.value}: {default.reason}")
    return config, notes


def _replaced(record: Any, names: list[str], value: Any, path: str) -> Any:
    if not dataclasses.is_dataclass(record) or not hasattr(record, names[0]):
        raise PlatformError(
            f"The platform sets a default for '{path}', which is no field of the configuration; update its package."
        )
    if len(names) > 1:
        value = _replaced(getattr(record, names[0]), names[1:], value, path)
    return dataclasses.replace(record, **{names[0]: value})  # type: ignore[type-var]  # it is a dataclass, by the check above
