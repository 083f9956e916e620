"""A real engine, step by step: what each step computed, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from benchmarks.gpu.engine import model_folder
from benchmarks.gpu.models import Sizes
from benchmarks.simulation.models import StepWork
from tessera.arrays import Array
from tessera.config import build_config
from tessera.engine.child import executor_path
from tessera.engine.engine import make_scheduler, silent
from tessera.engine.startup import StartedEngine, start_up
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import EngineCoreOutputs, FirstComeFirstServed
from tessera.scheduler.features import EngineFeatures

TIMERS: Mapping[str, Callable[[], float]] = MappingProxyType(
    {"processor": time.process_time, "wall": time.perf_counter}
)
"""Seconds of this process's threads, for a machine that has other work too (with one thread), or on the wall."""


class TimedEngine:
    """One step at a time is in flight. Answers have the length that is wanted, whatever is drawn."""

    def __init__(self, started: StartedEngine, timer: Callable[[], float]) -> None:
        self.plan, self.scheduler_config = started.plan, started.config.scheduler
        self._executor, self._timer = started.executor, timer
        self._scheduler = make_scheduler(started, FirstComeFirstServed(), 1, EngineFeatures())

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, key: int, prompt: Array, answer_length: int) -> None:
        params = SamplingParams(max_tokens=answer_length, temperature=0.0, ignore_eos=True)
        self._scheduler.add(Request(key, str(key), prompt, params, answer_length, key))

    def step(self) -> tuple[StepWork, float, EngineCoreOutputs]:
        """What it computed, its seconds from before it is scheduled until the scheduler has its output, and what came
        of it."""
        began = self._timer()
        step = self._scheduler.schedule()
        assert step is not None
        outputs = self._scheduler.update(self._executor.sample(self._executor.execute(step)).result())
        return StepWork.from_step(step), self._timer() - began, outputs


@contextmanager
def timed_engine(sizes: Sizes, timer: str, **flags: Any) -> Iterator[TimedEngine]:
    """An engine with random weights of a shape. timer: of TIMERS."""
    if timer == "processor":
        flags["threads"] = 1
    with TemporaryDirectory() as folder:
        config = build_config(
            model=str(model_folder(Path(folder), sizes)), load_format="dummy", skip_tokenizer_init=True,
            steps_in_flight=1, **flags,
        )  # fmt: skip
        started = start_up(config, executor_path(1, 1), silent)
        try:
            yield TimedEngine(started, TIMERS[timer])
        finally:
            started.executor.close()
