"""Turns a configuration into an executor that is ready: load, solve the KV cache, allocate, warm up. Each phase is
timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tessera.config import EngineConfig
from tessera.config.defaults import fill_defaults
from tessera.config.environment import resting_threads
from tessera.executor.base import Executor, Report
from tessera.kvcache.groups import solve
from tessera.platform.loaded_model import LoadedModel, merge_stages
from tessera.platform.platform import Platform
from tessera.platform.runner import CachePlan
from tessera.plugins import load_path

log = logging.getLogger(__name__)


class Loader(Protocol):
    """The part of an Executor that is needed to find out how much memory a model needs."""

    platform: Platform

    def load(self, report: Report) -> Sequence[LoadedModel]: ...


@dataclass(frozen=True)
class StartedEngine:
    """An executor with its model and cache, and how it got there."""

    # With the platform's defaults filled in.
    config: EngineConfig
    executor: Executor
    # The whole model.
    loaded: LoadedModel
    # Of the pipeline stage with the largest cache; all stages have the same groups and numbers of blocks.
    plan: CachePlan
    # Seconds that each phase took.
    phases: dict[str, float]
    # Choices made while building the model, and the defaults that were filled in.
    notes: list[str]


def start_up(config: EngineConfig, executor_path: str, report: Report) -> StartedEngine:
    """Starts the executor at a dotted path. If a phase fails, the executor is closed before the error is raised. Raises
    ConfigError, ModelError, PlatformError, MemoryBudgetError."""
    phases = Phases()
    with phases("executor"), resting_threads():  # the executor may be the first to import torch
        make: Callable[[EngineConfig], Executor] = load_path(executor_path)
        executor = make(config)
    return bring_up(config, executor, report, phases)


def bring_up(config: EngineConfig, executor: Executor, report: Report, phases: Phases) -> StartedEngine:
    """start_up() with an executor that has been made."""
    try:
        with phases("load"):
            config, stages, notes = load(config, executor, report)
        with phases("allocate"):
            plans = solve(stages, config, config.scheduler.max_num_seqs)
            executor.allocate(plans)
        with phases("warm_up"):
            executor.warm_up(report)
    except BaseException:
        _close_after_failure(executor)
        raise
    return StartedEngine(config, executor, merge_stages(stages), largest(plans), phases.seconds, notes)


def load(config: EngineConfig, loader: Loader, report: Report) -> tuple[EngineConfig, Sequence[LoadedModel], list[str]]:
    """Loads the model. Returns the configuration with the platform's defaults, the loaded model by pipeline stage, and
    notes: the choices made while building it, and those defaults. Raises the same errors as start_up()."""
    stages = loader.load(report)
    facts = merge_stages(stages).facts
    config, defaults = fill_defaults(config, loader.platform.defaults(facts), chunkable=facts.chunkable)
    notes = [*facts.notes, *defaults]
    for note in notes:
        log.info(note)
    return config, stages, notes


def largest(plans: Sequence[CachePlan]) -> CachePlan:
    """The plan of the pipeline stage with the largest cache."""
    return max(plans, key=lambda plan: plan.nbytes)


def _close_after_failure(executor: Executor) -> None:
    """The caller raises the error that ended the start; an error in close() is only logged."""
    try:
        executor.close()
    except Exception:
        log.exception("the executor of a failed start could not be closed")


class Phases:
    """Times the phases of a start: `with phases("load"): ...` records the seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begin
        log.info("%s took %.2f s", name, self.seconds[name])
