"""Finds the installed platforms, and why any of them cannot be used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tessera.config.environment import PREFIX, VARIABLES, read_environment
from tessera.platform import Manifest
from tessera.plugins.levels import Api, levels_problem
from tessera.plugins.loading import HookAnswer, Plugins, load_plugins
from tessera.plugins.paths import path_problem

_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")


@dataclass(frozen=True)
class Discovered:
    """A platform as its plugin announces it, or a plugin that could not be asked, named by its entry point. error: why
    it cannot be used. shims: the facets that run through a shim, each with its levels."""

    name: str
    distribution: str
    version: str
    manifest: Manifest | None = None
    error: str | None = None
    shims: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"'{self.name}' ({self.distribution} {self.version})"


def discover(plugins: Plugins | None = None) -> list[Discovered]:
    """Every installed platform, sorted by name. Probes none of them. plugins: None loads those that the environment
    allows."""
    if plugins is None:
        plugins = load_plugins(read_environment())
    found = [Discovered(p.name, p.distribution, p.version, error=p.error) for p in plugins if p.error is not None]
    for plugin in plugins.having("platforms"):
        found += _manifests(plugins.ask(plugin, "platforms"), plugins.api)
    return sorted(_without_duplicates(found), key=lambda platform: (platform.name, platform.distribution))


def declared_variables(platforms: Iterable[Discovered]) -> dict[str, str]:
    """The environment variables that platform packages read, and what they do."""
    manifests = [one.manifest for one in platforms if one.manifest is not None]
    return {name: text for manifest in manifests for name, text in manifest.variables.items()}


def _manifests(answer: HookAnswer, api: Api) -> list[Discovered]:
    plugin = answer.plugin
    nameless = Discovered(plugin.name, plugin.distribution, plugin.version)
    if answer.error is not None:
        return [replace(nameless, error=answer.error)]
    if not isinstance(answer.value, list | tuple) or not all(isinstance(one, Manifest) for one in answer.value):
        return [
            replace(
                nameless, error="its hook platforms must return a list of tessera.platform.Manifest; correct the plugin"
            )
        ]
    return [_announced(nameless, one, api) for one in answer.value]


def _announced(plugin: Discovered, manifest: Manifest, api: Api) -> Discovered:
    plugin = replace(plugin, name=str(manifest.name)[:80], manifest=manifest)
    problem = levels_problem(manifest.levels, api) or levels_problem(manifest.api_levels, api)
    if problem is not None:
        return replace(plugin, error=problem)
    adapt = api.manifests.get(manifest.api_levels["platform"])
    if adapt is not None:
        manifest = adapt(manifest)
    behind = api.behind(manifest.api_levels)
    shims = tuple(f"{facet} {api.levels[facet] - 1} as {api.levels[facet]}" for facet in behind)
    return replace(plugin, manifest=manifest, error=_problem(manifest), shims=shims)


def _problem(manifest: Manifest) -> str | None:
    if _NAME.fullmatch(str(manifest.name)) is None:
        return "its name must be lower-case letters and digits, with single - . or _ between; correct the plugin"
    for field, path in (("probe", manifest.probe), ("platform", manifest.platform)):
        problem = path_problem(path)
        if problem is not None:
            return f"{field} of its manifest: {problem}"
    for name in manifest.variables:
        if not name.startswith(PREFIX) or name in VARIABLES:
            return (
                f"variable {name[:40]} of its manifest must begin with {PREFIX} and not be core's; correct the plugin"
            )
    return None


def _without_duplicates(platforms: list[Discovered]) -> list[Discovered]:
    """Marks platforms with an error if their name is claimed by several manifests."""
    by_name: dict[str, list[Discovered]] = defaultdict(list)
    for one in platforms:
        if one.manifest is not None:
            by_name[one.name].append(one)
    checked = []
    for one in platforms:
        same = by_name[one.name] if one.manifest is not None else []
        if len(same) > 1:
            owners = " and ".join(sorted(f"{other.distribution} {other.version}" for other in same))
            checked.append(replace(one, error=f"platform '{one.name}' comes from {owners}; uninstall one of them"))
        else:
            checked.append(one)
    return checked
