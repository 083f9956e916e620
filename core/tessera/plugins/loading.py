"""The plugins of a process: modules imported one at a time and without torch, checked against the hooks, and called one
at a time."""

from __future__ import annotations

import importlib
import logging
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from time import perf_counter
from types import ModuleType
from typing import Any

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tessera._version import __version__
from tessera.config.environment import Environment
from tessera.errors import TesseraError
from tessera.hookspecs import PROJECT, Hooks
from tessera.log import TEXT, set_up_logging
from tessera.platform import Manifest
from tessera.plugins import builtin
from tessera.plugins.levels import API, Api, adapted_module
from tessera.plugins.registry import Registry


def load_plugins(environment: Environment | None = None, modules: Iterable[str] = (), api: Api = API) -> Plugins:
    """Loads core's own plugin, the entry points sorted by name, then modules by their dotted names.

    environment: which plugins to leave out, and whether to trace hook calls; None for neither. api: what core promises
    to plugins.
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
    except (Exception, SystemExit) as raised:  # noqa: BLE001  # reported by `doctor`; other plugins go on loading
        error = f"{name} cannot be imported: {describe(raised)}"
    if attempts:
        error, module = torch_problem(name, attempts), None
        # If it stayed imported, it would not ask for torch again and would pass the next time.
        for new in set(sys.modules) - held:
            if new.partition(".")[0] == name.partition(".")[0]:
                del sys.modules[new]
    return replace(plugin, module=module, error=error)


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


REFUSED = ("torch", "transformers")


@contextmanager
def without_torch() -> Iterator[list[str]]:
    """While active, imports of torch and transformers in this thread fail. Yields a list of the attempts, including
    those whose error the importer swallowed. A module that is already loaded is not noticed."""
    guard = _Guard(threading.get_ident())
    sys.meta_path.insert(0, guard)
    try:
        yield guard.attempts
    finally:
        sys.meta_path.remove(guard)


class _Guard:
    """A finder that refuses to import REFUSED."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.attempts: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if threading.get_ident() != self.thread or name.partition(".")[0] not in REFUSED:
            return None
        self.attempts.append(name)
        raise ModuleNotFoundError(f"{name} is not for a plugin's module to import", name=name)


CORE = "tessera-llm"
"""Core's distribution; its version is that of the running code."""


def requirements_problem(distribution: Distribution) -> str | None:
    """The first requirement that is missing or has a wrong version, and what to do; None if all are met. Metadata that
    cannot be parsed is ignored, and left for the import to fail on."""
    try:
        pythons = SpecifierSet(str(distribution.metadata.json.get("requires_python", "")))
        needs = [Requirement(line) for line in distribution.requires or ()]
    except (InvalidRequirement, InvalidSpecifier):
        return None
    here = platform.python_version()
    if not pythons.contains(here, prereleases=True):
        return f"it needs Python {pythons}, and this is {here}; install one of its releases for this Python"
    return next((problem for need in needs if (problem := _problem(need)) is not None), None)


def _problem(need: Requirement) -> str | None:
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    wanted = f"{need.name}{need.specifier}"
    try:
        found = __version__ if need.name == CORE else version(need.name)
    except PackageNotFoundError:
        return f"it needs {wanted}, which is not installed; pip install '{wanted}'"
    if need.specifier.contains(found, prereleases=True):
        return None
    return f"it needs {wanted}, and {found} is installed; pip install '{wanted}', or another release of the plugin"


@dataclass(frozen=True)
class Plugin:
    """An entry point, or a module named in a configuration, and the result of loading it. entry: the module's dotted
    name. error: why it cannot be used. left_out: the setting that excludes it."""

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
class HookAnswer:
    """The result of one plugin's hook, or why there is none."""

    plugin: Plugin
    value: Any = None
    error: str | None = None


class Plugins:
    """The plugins of one process: core's own first, then the others in the order of loading. api: what core promises to
    plugins."""

    def __init__(self, api: Api = API) -> None:
        self.api = api
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Hooks)
        self._plugins: list[Plugin] = []
        self.add(Plugin("builtin", CORE, __version__, builtin.__name__, builtin))

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self._plugins)

    def add(self, plugin: Plugin) -> None:
        """Registers a plugin; one with invalid hooks is kept with its error."""
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

    def ask(self, plugin: Plugin, hook: str, **arguments: Any) -> HookAnswer:
        """Calls the hook of one plugin only, so that its errors do not affect the others."""
        others = [other for other in self._manager.get_plugins() if other is not plugin.module]
        try:
            with without_torch() as attempts:
                values = self._manager.subset_hook_caller(hook, others)(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # reported with the plugin's name; others go on
            return HookAnswer(plugin, error=f"its hook {hook} failed: {describe(error)}")
        if attempts:
            return HookAnswer(plugin, error=torch_problem(f"its hook {hook}", attempts))
        return HookAnswer(plugin, value=values[0] if values else None)

    def _register(self, module: ModuleType) -> str | None:
        """Why its hooks cannot be used, or None if they can."""
        if self._manager.is_registered(module):
            return f"{module.__name__} is registered already, by another entry point; remove one of the two"
        try:
            self._manager.register(module)
        except pluggy.PluginValidationError as error:
            # Versions of pluggy differ in whether a refused plugin stays registered.
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
    """An exception as one line."""
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


log = logging.getLogger(__name__)
MAX_LISTED = 8


class TracedPlugins(Plugins):
    """Plugins that logs every hook call, whatever the log level. Sets up logging if the process has none."""

    def __init__(self, api: Api = API) -> None:
        if not logging.getLogger().handlers:
            set_up_logging(logging.WARNING, TEXT)
        log.setLevel(logging.INFO)
        super().__init__(api)

    def ask(self, plugin: Plugin, hook: str, **arguments: Any) -> HookAnswer:
        given: list[str] = []
        watched = {name: _watched(value, given) if callable(value) else value for name, value in arguments.items()}
        begin = perf_counter()
        answer = super().ask(plugin, hook, **watched)
        took = (perf_counter() - begin) * 1e3
        given += _names(answer.value, arguments)
        said = answer.error if answer.error is not None else _listed(given)
        log.info("hook %s of plugin %s (%s) in %.1f ms: %s", hook, plugin.name, plugin, took, said)
        return answer


def _watched(register: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    def watched(*arguments: Any, **keywords: Any) -> Any:
        what = next(iter((*arguments, *keywords.values())), None)
        names.append(str(getattr(what, "name", what))[:80])
        return register(*arguments, **keywords)

    return watched


def _names(value: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """The names of what a hook returned or added to a registry."""
    if isinstance(value, list | tuple):
        yield from (str(one.name)[:80] for one in value if isinstance(one, Manifest))
    for registry in arguments.values():
        if isinstance(registry, Registry):
            yield from (entry.name for table in registry.tables() for entry in table)


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
