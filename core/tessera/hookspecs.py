"""The hooks a plugin can implement. All are called at start-up; none are called while tokens are generated.

A plugin marks its functions with tessera.platform.hookimpl. docs/plugins/hooks.md describes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import pluggy

if TYPE_CHECKING:
    import click

    from tessera.platform import Manifest
    from tessera.plugins.registry import Registry

PROJECT = "tessera"
"""The project name for pluggy, and the entry point group."""

hookspec = pluggy.HookspecMarker(PROJECT)

REMOVED_HOOKS: Mapping[str, str] = MappingProxyType({})
"""Hooks that no longer exist, each with its replacement, for the error a plugin that uses one gets."""


class RegisterRoutes(Protocol):
    def __call__(self, name: str, path: str) -> None: ...


class Hooks:
    """The hook specifications."""

    @hookspec
    def platforms(self) -> Sequence[Manifest]:  # type: ignore[empty-body]  # a specification has no body
        """Called when platforms are chosen or listed, in the front process only. Returns manifests, which hold data and
        dotted paths only. Must not probe or open a device, or import torch."""

    @hookspec
    def extensions(self, registry: Registry) -> None:
        """Called once in each process that builds an engine or a model, before either is built. Adds names to the
        registry's tables, e.g. `registry.models.add("MyForCausalLM", "my_plugin.models:MyForCausalLM", level=0)`."""

    @hookspec
    def commands(self, register: Callable[[click.Command], None]) -> None:
        """Called when the command line lists its commands, or is given a command that is not built in. Pass each
        command to `register`."""

    @hookspec
    def routes(self, register: RegisterRoutes) -> None:
        """Called when the server is built; only the routes that --routes names are served. `register(name, path)` takes
        the dotted path of a function that receives the engine and returns a list of FastAPI or Starlette routes.
        --api-key protects them like the server's own."""
