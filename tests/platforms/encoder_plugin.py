"""The plugin that brings the encoder model; without torch, as every plugin's module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platform import hookimpl

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

ENCODER_PLUGIN = "tests.platforms.encoder_plugin"


@hookimpl
def extensions(registry: Registry) -> None:
    registry.models.add("TinyEncoder", "tests.platforms.encoder_model:encoder", level=0)
