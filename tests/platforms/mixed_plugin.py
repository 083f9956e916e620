"""The plugin that brings the mixed model and its op; without torch, as every plugin's module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platform import hookimpl

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

MIXED_PLUGIN = "tests.platforms.mixed_plugin"


@hookimpl
def extensions(registry: Registry) -> None:
    registry.models.add("TinyMixed", "tests.platforms.mixed_model:mixed", level=0)
    registry.ops.add("soften", "tests.platforms.mixed_model:SOFTEN", level=0)
