"""Each call of a hook in the log: whose it was, what it gave, how long it took."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from tessera.log import TEXT, set_up_logging
from tessera.platform import Manifest
from tessera.plugins.api import API, Api
from tessera.plugins.modules import Answer, Plugin, Plugins
from tessera.plugins.registry import Registry

log = logging.getLogger(__name__)
SHOWN = 8


class TracedPlugins(Plugins):
    """Its lines are written whatever the level of the log; a process without a log gets one."""

    def __init__(self, api: Api = API) -> None:
        if not logging.getLogger().handlers:
            set_up_logging(logging.WARNING, TEXT)
        log.setLevel(logging.INFO)
        super().__init__(api)

    def ask(self, plugin: Plugin, hook: str, **arguments: Any) -> Answer:
        given: list[str] = []
        watched = {name: _watched(value, given) if callable(value) else value for name, value in arguments.items()}
        begin = perf_counter()
        answer = super().ask(plugin, hook, **watched)
        took = (perf_counter() - begin) * 1e3
        given += _names(answer.value, arguments)
        said = answer.error if answer.error is not None else _listed(given)
        log.info("hook %s of plugin %s (%s) in %.1f ms: %s", hook, plugin.name, plugin, took, said)
        return answer


def _watched(register: Callable[..., Any], given: list[str]) -> Callable[..., Any]:
    def watched(*arguments: Any, **keywords: Any) -> Any:
        what = next(iter((*arguments, *keywords.values())), None)
        given.append(str(getattr(what, "name", what))[:80])
        return register(*arguments, **keywords)

    return watched


def _names(value: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Of what a hook returned, and of what it added to a registry."""
    if isinstance(value, list | tuple):
        yield from (str(one.name)[:80] for one in value if isinstance(one, Manifest))
    for registry in arguments.values():
        if isinstance(registry, Registry):
            yield from (entry.name for table in registry.tables() for entry in table)


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
