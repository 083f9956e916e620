"""The flags of `tessera serve` that are the engine's, for commands that start one of their own."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tessera.cli.flags import Flag
from tessera.cli.serve_flags import FLAGS, GROUPS
from tessera.config import EngineConfig, build_config


def engine_flags(*, without: Collection[str] = ()) -> tuple[Flag, ...]:
    """Those that build_config takes, none of them in a plain --help."""
    taken = set(inspect.signature(build_config).parameters) - {"model", "served_model_name", *without}
    return tuple(replace(flag, common=False) for flag in FLAGS if flag.name in taken)


def groups_of(flags: tuple[Flag, ...]) -> dict[str, str]:
    """The groups of serve's that these are in, with their titles."""
    return {name: title for name, title in GROUPS.items() if any(flag.group == name for flag in flags)}


def engine_config(model: str | None, values: Mapping[str, Any], **fixed: Any) -> EngineConfig:
    """values: of all flags of a command; those that are not the engine's are left out. fixed: in place of a flag.
    Raises ConfigError, ModelError, PlatformError."""
    names = {flag.name for flag in engine_flags()}
    return build_config(model=model, **{**{name: value for name, value in values.items() if name in names}, **fixed})
