"""Loading the modules that entry points name: one at a time, each in its own try, without torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from tessera.config.environment import Environment
from tessera.hookspecs import PROJECT
from tessera.plugins.api import API, Api
from tessera.plugins.modules import Plugin, Plugins, describe, torch_problem
from tessera.plugins.requirements import requirements_problem
from tessera.plugins.torch_guard import without_torch
from tessera.plugins.trace import TracedPlugins


def load_plugins(environment: Environment | None = None, modules: Iterable[str] = (), api: Api = API) -> Plugins:
    """Core's own plugin, the entry points in the order of their names, then modules by their dotted names.

    environment: says which of them are left out, by name, and whether calls of hooks are traced; None is an empty one.
    api: what core promises them.
    """
    environment = environment or Environment()
    plugins = TracedPlugins(api) if environment.trace_plugins else Plugins(api)
    for entry in sorted(entry_points(group=PROJECT), key=lambda entry: (entry.name, _distribution(entry))):
        version = entry.dist.version if entry.dist is not None else ""
        plugins.add(_loaded(Plugin(entry.name, _distribution(entry), version, entry.value), environment, entry))
    for name in modules:
        plugins.add(_loaded(Plugin(name, name, "", name), environment, None))
    return plugins


def _loaded(plugin: Plugin, environment: Environment, entry: EntryPoint | None) -> Plugin:
    if plugin.name in environment.disable_plugins:
        return replace(plugin, left_out="TESSERA_DISABLE_PLUGINS names it")
    if entry is None:
        return _import(plugin, plugin.entry)
    if environment.load_plugins is not None and plugin.name not in environment.load_plugins:
        return replace(plugin, left_out="TESSERA_LOAD_PLUGINS does not name it")
    if entry.attr:
        return replace(plugin, error=f"its entry point must name a module, not {entry.value}; correct the plugin")
    lacking = requirements_problem(entry.dist) if entry.dist is not None else None
    return replace(plugin, error=lacking) if lacking is not None else _import(plugin, entry.module)


def _import(plugin: Plugin, name: str) -> Plugin:
    error: str | None = None
    module: ModuleType | None = None
    held = set(sys.modules)
    try:
        with without_torch() as attempts:
            module = importlib.import_module(name)
    except ModuleNotFoundError as raised:
        own = raised.name is not None and (name == raised.name or name.startswith(f"{raised.name}."))
        error = f"there is no module {raised.name}, which its entry point names; install it again" if own else None
        error = error or f"{name} cannot be imported: {describe(raised)}"
    except (Exception, SystemExit) as raised:  # noqa: BLE001  # kept for `doctor`; it ends nothing else
        error = f"{name} cannot be imported: {describe(raised)}"
    if attempts:
        error, module = torch_problem(name, attempts), None
        # Imported once, it would not ask again, and pass as a good plugin the next time.
        for new in set(sys.modules) - held:
            if new.partition(".")[0] == name.partition(".")[0]:
                del sys.modules[new]
    return replace(plugin, module=module, error=error)


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
