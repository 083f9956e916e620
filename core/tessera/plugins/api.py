"""What core promises to plugins, as one value: its levels, what runs plugins of the level before, and what is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.hookspecs import REMOVED_HOOKS
from tessera.platform import API_LEVELS, Manifest, Platform


@dataclass(frozen=True)
class Removed:
    """A member that a contract had until a level of a facet, and what replaced it. What was written for a level before
    still has it, for a shim to call."""

    facet: str
    level: int
    replacement: str


@dataclass(frozen=True)
class OldHook:
    """A hook of the level before. name: of the hook that replaced it; adapt: makes of a plugin's function one for
    that."""

    name: str
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Api:
    """levels: core's own, by facet and op group.

    shims: by facet and the level that a plugin was written for, what makes its platform look like one of the level
    after; without one that level is not supported. manifests: likewise for what the hook `platforms` returns, by the
    level of the facet "platform" that it was written for. hooks: hooks of the level before, by name. removed: by
    contract ("Platform", "Kernel", ...) and member. removed_hooks: by name, what replaced it.
    """

    levels: Mapping[str, int]
    shims: Mapping[tuple[str, int], Callable[[Platform], Platform]] = field(default_factory=dict)
    manifests: Mapping[int, Callable[[Manifest], Manifest]] = field(default_factory=dict)
    hooks: Mapping[str, OldHook] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, Removed]] = field(default_factory=dict)
    removed_hooks: Mapping[str, str] = field(default_factory=dict)

    def supported(self, facet: str) -> tuple[int, ...]:
        """Levels of a facet that can run, in order."""
        core = self.levels[facet]
        return (core - 1, core) if (facet, core - 1) in self.shims else (core,)

    def behind(self, levels: Mapping[str, int]) -> list[str]:
        """Of a plugin's facets those that run through a shim."""
        return [facet for facet, level in levels.items() if level == self.levels.get(facet, level) - 1]


API = Api(API_LEVELS, removed_hooks=REMOVED_HOOKS)
"""Core's own. Its shims, one for each facet of a level from 2 on, stand beside this."""
