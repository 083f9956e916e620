"""What plugins add through the hooks extensions, commands and routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tessera.config.environment import read_environment
from tessera.errors import ConfigError, ModelError, PlatformError, printable
from tessera.platform import WeightFormat
from tessera.plugins.loading import CORE, Plugin, Plugins, load_plugins
from tessera.plugins.paths import load_path, path_problem
from tessera.plugins.registry import Registry, RegistryEntry

if TYPE_CHECKING:
    import click


def load_registry(modules: Iterable[str] = ()) -> Registry:
    """The registry of this process: core's names and the plugins'. modules: further plugins (EngineConfig.plugins).

    Raises PlatformError if a plugin's hook fails or two plugins claim the same name. Errors about unknown names mention
    the plugins that were not loaded.
    """
    return fill_registry(load_plugins(read_environment(), modules))


def fill_registry(plugins: Plugins) -> Registry:
    """The registry of loaded plugins. Each plugin fills a registry of its own, which is added as a whole."""
    lost = [(plugin, plugin.error or plugin.left_out) for plugin in plugins]
    registry = Registry(CORE, absent=[f"{plugin}: {why}" for plugin, why in lost if why is not None])
    for plugin in plugins.having("extensions"):
        own = Registry(plugin.distribution)
        _ask(plugins, plugin, "extensions", registry=own)
        registry.take_all(own)
    return registry


def weight_format(checkpoint: Mapping[str, Any], registry: Registry | None = None) -> WeightFormat | None:
    """How a checkpoint stores its quantized weights; None if it has none. checkpoint: its config.json. registry: by
    default this process's. Raises ModelError, naming the field, for what cannot be read."""
    config = checkpoint.get("quantization_config")
    if config is None:
        return None
    method = config.get("quant_method") if isinstance(config, dict) else None
    if not isinstance(method, str):
        raise ModelError("quantization_config in config.json is not an object with a quant_method.")
    formats = (registry or load_registry()).formats
    if method not in formats:
        raise formats.unsupported(printable(method, 40))
    make: Callable[[Mapping[str, Any]], WeightFormat] = load_path(formats.resolve(method))
    return make(config)


def plugin_commands(plugins: Plugins) -> tuple[dict[str, click.Command], list[str]]:
    """The plugins' commands by name, and messages about those left out: an error, or a name that is already used."""
    commands: dict[str, click.Command] = {}
    owners: dict[str, Plugin] = {}
    problems: list[str] = []
    for plugin in plugins.having("commands"):
        own: list[click.Command] = []
        answer = plugins.ask(plugin, "commands", register=own.append)
        if answer.error is not None:
            problems.append(f"{plugin}: {answer.error}")
            continue
        for command in own:
            name = str(command.name)
            if name in commands:
                problems.append(f"command '{name}' comes from {owners[name]} and from {plugin}; uninstall one of them")
            else:
                commands[name], owners[name] = command, plugin
    return commands, problems


def named_routes(plugins: Plugins, names: Sequence[str]) -> list[str]:
    """Dotted paths of the routers that --routes names. Raises ConfigError for a name that no plugin provides, and
    PlatformError for one that two provide."""
    offered: dict[str, RegistryEntry] = {}
    for plugin in plugins.having("routes"):
        own: list[RegistryEntry] = []
        _ask(plugins, plugin, "routes", register=_collector(own, str(plugin)))
        for entry in own:
            if entry.name in offered:
                owners = f"{offered[entry.name].owner} and {entry.owner}"
                raise PlatformError(f"routes '{entry.name}' come from {owners}; uninstall one of them.")
            offered[entry.name] = entry
    for name in names:
        if name not in offered:
            there = f"there is {', '.join(sorted(offered))}" if offered else "no installed plugin has any"
            raise ConfigError(f"There are no routes '{name}'; {there}.", param="routes")
    return [offered[name].path for name in dict.fromkeys(names)]


def _collector(into: list[RegistryEntry], owner: str) -> Any:
    def register(name: str, path: str) -> None:
        problem = path_problem(path)
        if problem is not None:
            raise PlatformError(f"routes '{name}': {problem}.")
        into.append(RegistryEntry(name, path, owner))

    return register


def _ask(plugins: Plugins, plugin: Plugin, hook: str, **arguments: Any) -> None:
    answer = plugins.ask(plugin, hook, **arguments)
    if answer.error is not None:
        raise PlatformError(f"Plugin {plugin} cannot be used: {answer.error}.")
