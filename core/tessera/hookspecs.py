"""The hooks a plugin can implement. All of them are called at start-up; the token loop calls none.

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
"""Pluggy's name of the project, and the group of the entry points."""

hookspec = pluggy.HookspecMarker(PROJECT)

REMOVED_HOOKS: Mapping[str, str] = MappingProxyType({})
"""Hooks that no longer exist, each with what replaces it, for the error that a plugin using one gets."""


class RegisterRoutes(Protocol):
    def __call__(self, name: str, path: str) -> None: ...


class Hooks:
    """The specifications."""

    @hookspec
    def platforms(self) -> Sequence[Manifest]:  # type: ignore[empty-body]  # a specification has no body
        """Fires when platforms are chosen or listed, in the front process only. Returns manifests: data and dotted
        paths. Nothing is probed or opened here, and torch is not imported."""

    @hookspec
    def extensions(self, registry: Registry) -> None:
        """Fires once in each process that builds an engine or a model, before either. Adds names to the registry's
        tables, such as `registry.models.add("MyForCausalLM", "my_plugin.models:MyForCausalLM", level=0)`."""

    @hookspec
    def commands(self, register: Callable[[click.Command], None]) -> None:
        """Fires when the command line lists its commands or is given one that is not its own. Each command is handed to
        `register`."""

    @hookspec
    def routes(self, register: RegisterRoutes) -> None:
        """Fires when the server is built; only the routes that --routes names are served. `register(name, path)` takes
        the dotted path of a function from the engine to a list of routes, FastAPI's or Starlette's; --api-key guards
        them as the server's own."""
