"""The plugins of a process: their modules, checked against the hooks, and asked one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import pluggy

from tessera._version import __version__
from tessera.errors import TesseraError
from tessera.hookspecs import PROJECT, Hooks
from tessera.plugins import builtin
from tessera.plugins.api import API, Api
from tessera.plugins.requirements import CORE
from tessera.plugins.shims import adapted_module
from tessera.plugins.torch_guard import without_torch


@dataclass(frozen=True)
class Plugin:
    """An entry point, or a module named in a configuration, and what came of loading it. entry: the module's dotted
    name. error: why it gives nothing. left_out: who did not want it loaded."""

    name: str
    distribution: str
    version: str
    entry: str = ""
    module: ModuleType | None = None
    error: str | None = None
    left_out: str | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True)
class Answer:
    """What one plugin's hook returned, or why it did not."""

    plugin: Plugin
    value: Any = None
    error: str | None = None


class Plugins:
    """The plugins of one process. Core's own come first, then the others in the order they were loaded. api: what core
    promises them."""

    def __init__(self, api: Api = API) -> None:
        self.api = api
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Hooks)
        self._plugins: list[Plugin] = []
        self.add(Plugin("builtin", CORE, __version__, builtin.__name__, builtin))

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self._plugins)

    def add(self, plugin: Plugin) -> None:
        """Registers a plugin; one that does not keep to the hooks is kept with its error."""
        if plugin.module is not None:
            plugin = replace(plugin, module=adapted_module(plugin.module, self.api.hooks))
            assert plugin.module is not None
            problem = self._register(plugin.module)
            if problem is not None:
                plugin = replace(plugin, module=None, error=problem)
        self._plugins.append(plugin)

    def having(self, hook: str) -> list[Plugin]:
        """The plugins that implement a hook."""
        return [plugin for plugin in self._plugins if hook in self.hooks(plugin)]

    def hooks(self, plugin: Plugin) -> list[str]:
        """The names of the hooks that a plugin implements."""
        if plugin.module is None:
            return []
        return sorted(caller.name for caller in self._manager.get_hookcallers(plugin.module) or ())

    def ask(self, plugin: Plugin, hook: str, **arguments: Any) -> Answer:
        """Calls the hook of one plugin alone, so that its error stops no other."""
        others = [other for other in self._manager.get_plugins() if other is not plugin.module]
        try:
            with without_torch() as attempts:
                values = self._manager.subset_hook_caller(hook, others)(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # kept with the plugin's name; it ends nothing else
            return Answer(plugin, error=f"its hook {hook} failed: {describe(error)}")
        if attempts:
            return Answer(plugin, error=torch_problem(f"its hook {hook}", attempts))
        return Answer(plugin, value=values[0] if values else None)

    def _register(self, module: ModuleType) -> str | None:
        """Why its hooks cannot be used, or None."""
        if self._manager.is_registered(module):
            return f"{module.__name__} is registered already, by another entry point; remove one of the two"
        try:
            self._manager.register(module)
        except pluggy.PluginValidationError as error:
            # Whether a refused plugin stays registered differs between versions of pluggy.
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            return _one_line(error)
        callers = self._manager.get_hookcallers(module) or []
        unknown = next((caller.name for caller in callers if not caller.has_spec()), None)
        if unknown is None and callers:
            return None
        self._manager.unregister(module)
        return no_such_hook(unknown, self.api) if unknown is not None else _NO_HOOKS.format(name=module.__name__)


_NO_HOOKS = "{name} has no hooks; mark its functions with tessera.platform.hookimpl"


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = _one_line(error)
    if isinstance(error, TesseraError):
        return text.removesuffix(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def no_such_hook(name: str, api: Api = API) -> str:
    if name in api.removed_hooks:
        return f"its hook '{name}' no longer exists; {api.removed_hooks[name]} replaced it"
    hooks = [hook for hook in vars(Hooks) if not hook.startswith("_")]
    near = get_close_matches(name, hooks, n=1)
    hint = f"did it mean {near[0]}?" if near else f"there is {', '.join(hooks)}"
    return f"it implements a hook '{name}', which core does not have; {hint}"


def torch_problem(who: str, attempts: list[str]) -> str:
    return f"{who} imports {attempts[0]}, which is only for what its manifest names by dotted path; import it there"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
