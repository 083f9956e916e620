"""From a configuration to an executor that is ready: load, solve the KV cache, allocate, warm up, each phase timed."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.config import EngineConfig
from tessera.errors import ConfigError, PlatformError
from tessera.executor.base import Executor, Report
from tessera.kvcache.groups import solve
from tessera.platform.platform import Default, Platform
from tessera.platform.runner import CachePlan, LoadedModel
from tessera.plugins import load_path

log = logging.getLogger(__name__)


class Loader(Protocol):
    """What of an Executor is needed to know a model's needs."""

    platform: Platform

    def load(self, report: Report) -> LoadedModel: ...


@dataclass(frozen=True)
class Started:
    """config: with the platform's defaults filled in. notes: those, and what the model's building chose. phases:
    seconds of each."""

    config: EngineConfig
    executor: Executor
    loaded: LoadedModel
    plan: CachePlan
    phases: dict[str, float]
    notes: list[str]


def start_up(config: EngineConfig, executor_path: str, report: Report) -> Started:
    """Raises ConfigError, ModelError, PlatformError, MemoryBudgetError. Whatever is raised, the executor is closed by
    then."""
    phases = Phases()
    with phases("executor"):
        make: Callable[[EngineConfig], Executor] = load_path(executor_path)
        executor = make(config)
    try:
        with phases("load"):
            config, loaded, notes = load(config, executor, report)
        with phases("allocate"):
            plan = solve(loaded, config, config.scheduler.max_num_seqs)
            executor.allocate(plan)
        with phases("warm_up"):
            executor.warm_up(report)
    except BaseException:
        _close_after_failure(executor)
        raise
    return Started(config, executor, loaded, plan, phases.seconds, notes)


def load(config: EngineConfig, loader: Loader, report: Report) -> tuple[EngineConfig, LoadedModel, list[str]]:
    """The loaded model, the configuration with the platform's defaults, and notes: what the model's building chose, and
    those defaults. Raises as start_up() does."""
    loaded = loader.load(report)
    config, defaults = fill_defaults(config, loader.platform.defaults(loaded.facts))
    notes = [*loaded.facts.notes, *defaults]
    for note in notes:
        log.info(note)
    problems = [problem.text for problem in loader.platform.check(config, loaded.facts)]
    if problems:
        raise ConfigError("\n".join(problems))
    return config, loaded, notes


def _close_after_failure(executor: Executor) -> None:
    """The error that ended the start is the one to tell of; another one here goes to the log."""
    try:
        executor.close()
    except Exception:
        log.exception("the executor of a failed start could not be closed")


def fill_defaults(config: EngineConfig, defaults: Mapping[str, Default]) -> tuple[EngineConfig, list[str]]:
    """The configuration with a platform's defaults ("scheduler.max_num_seqs") where the user said nothing, and a line
    for each. Raises PlatformError."""
    notes = []
    for path, default in defaults.items():
        if path not in config.given:
            config = _replaced(config, path.split("."), default.value, path)
            notes.append(f"{path} = {default.value}: {default.reason}")
    return config, notes


def _replaced(record: Any, names: list[str], value: Any, path: str) -> Any:
    if not dataclasses.is_dataclass(record) or not hasattr(record, names[0]):
        raise PlatformError(f"The platform has a default for '{path}', which no configuration has; update its package.")
    if len(names) > 1:
        value = _replaced(getattr(record, names[0]), names[1:], value, path)
    return dataclasses.replace(record, **{names[0]: value})  # type: ignore[type-var]  # it is a dataclass, by the check above


class Phases:
    """`with phases("load"): ...` notes the seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begin
        log.info("%s took %.2f s", name, self.seconds[name])
