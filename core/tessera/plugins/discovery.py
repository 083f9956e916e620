"""Which platforms are installed, and why one of them cannot be used."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from tessera.config.environment import read_environment
from tessera.platform import API_LEVELS, Manifest
from tessera.plugins.levels import levels_problem
from tessera.plugins.loading import load_plugins
from tessera.plugins.modules import Answer, Plugins
from tessera.plugins.paths import path_problem

_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")


@dataclass(frozen=True)
class Discovered:
    """A platform as its plugin announces it, or a plugin that could not be asked (then `name` is its entry point's).
    error: why it cannot be used."""

    name: str
    distribution: str
    version: str
    manifest: Manifest | None = None
    error: str | None = None

    def __str__(self) -> str:
        return f"'{self.name}' ({self.distribution} {self.version})"


def discover(plugins: Plugins | None = None) -> list[Discovered]:
    """Every installed platform, in the order of their names; nothing is probed. plugins: None loads those that the
    environment allows."""
    if plugins is None:
        plugins = load_plugins(read_environment())
    found = [Discovered(p.name, p.distribution, p.version, error=p.error) for p in plugins if p.error is not None]
    for plugin in plugins.having("platforms"):
        found += _manifests(plugins.ask(plugin, "platforms"))
    return sorted(_without_duplicates(found), key=lambda one: (one.name, one.distribution))


def _manifests(answer: Answer) -> list[Discovered]:
    plugin = answer.plugin
    nameless = Discovered(plugin.name, plugin.distribution, plugin.version)
    if answer.error is not None:
        return [replace(nameless, error=answer.error)]
    if not isinstance(answer.value, list | tuple) or not all(isinstance(one, Manifest) for one in answer.value):
        return [replace(nameless, error="its hook platforms must return a list of tessera.platform.Manifest")]
    return [
        Discovered(str(one.name)[:80], plugin.distribution, plugin.version, manifest=one, error=_problem(one))
        for one in answer.value
    ]


def _problem(manifest: Manifest) -> str | None:
    if _NAME.fullmatch(str(manifest.name)) is None:
        return "its name must be lower-case letters and digits, with single - . or _ between"
    for field, path in (("probe", manifest.probe), ("platform", manifest.platform)):
        problem = path_problem(path)
        if problem is not None:
            return f"{field} of its manifest: {problem}"
    return levels_problem(manifest.levels, API_LEVELS)


def _without_duplicates(found: list[Discovered]) -> list[Discovered]:
    """A name that two manifests claim is an error of both."""
    by_name: dict[str, list[Discovered]] = defaultdict(list)
    for one in found:
        if one.manifest is not None:
            by_name[one.name].append(one)
    checked = []
    for one in found:
        same = by_name[one.name] if one.manifest is not None else []
        if len(same) > 1:
            owners = " and ".join(sorted(f"{other.distribution} {other.version}" for other in same))
            checked.append(replace(one, error=f"platform '{one.name}' comes from {owners}; uninstall one of them"))
        else:
            checked.append(one)
    return checked
