"""One engine as its front end has it: the process, which is replaced when it dies, and the requests that run on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tessera.config import Supervision
from tessera.engine.child import EngineChild
from tessera.engine.completion import RequestState
from tessera.engine.crash_suspects import CrashSuspects
from tessera.engine.engine_connection import EngineConnection
from tessera.engine.frontend import FrontEnd, Update
from tessera.engine.messages import AbortRequests, AddRequests, EngineInfo, Report
from tessera.engine.output_readers import OutputReaders
from tessera.engine.spawned_engine import SpawnedEngine
from tessera.engine.supervisor import Supervisor, SupervisorCallbacks
from tessera.errors import EngineAsleepError, EngineDeadError, FatalRequestError, RequestError
from tessera.log import about
from tessera.platform.runner import Progress

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.engine.input_processor import PooledPrompt, Prompt
    from tessera.text import Vocabulary

log = logging.getLogger(__name__)

SHUT_DOWN = "The engine was shut down."
ASLEEP = "The engine sleeps until wake_up()."
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Health:
    """How an engine is."""

    # An engine is running.
    alive: bool
    # It is running but seems to hang.
    stalled: bool
    seconds_since_heartbeat: float
    # How the last engine ended, in words.
    error: str | None = None
    # Another engine is being started.
    restarting: bool = False
    # It takes no requests until it is woken up; what it had begun may still be running.
    asleep: bool = False


@dataclass(frozen=True)
class EngineLauncher:
    """Starts the processes of one engine, each after the one before has ended."""

    config: EngineConfig
    # Dotted path.
    executor: str
    supervision: Supervision
    # Of the first process; each further one has the next.
    epoch: int = 1
    # The first process, if it is already running.
    child: EngineChild | None = None
    # Called while the first process starts.
    on_progress: Callable[[Progress], None] | None = None

    def launch(self, on_report: Callable[[Report], None], epoch: int) -> EngineConnection:
        """Raises OSError."""
        is_first = epoch == self.epoch
        spawned = SpawnedEngine(self.config, self.executor, epoch, self.child if is_first else None)
        on_progress = self.on_progress if is_first and self.on_progress is not None else _ignore
        return EngineConnection(spawned, on_report, on_progress, self.supervision.stall_seconds)


class EngineHandle:
    """Bound to the event loop that started it. Requests whose readers have not got any output start over on the next
    engine when one dies."""

    def __init__(self, launcher: EngineLauncher, vocabulary: Vocabulary | None) -> None:
        """Starts nothing; see start()."""
        config = self.config = launcher.config
        # Of the present process, or the last one; valid after start().
        self.info: EngineInfo
        self.front_end = FrontEnd(config, vocabulary, max_model_len=config.model.max_model_len)
        # There will be no other process.
        self.has_ended = False
        self.is_asleep = False
        # To fall asleep and to wake up take turns.
        self._changing = asyncio.Lock()
        # Whether another engine can run what this one lost.
        self.others_run: Callable[[], bool] = _never
        # How often a request that lost its engine may move to another.
        self.num_moves = 0
        self._movable: set[RequestState] = set()
        self._readers = OutputReaders()
        self._suspects = CrashSuspects()
        self._alone = nullcontext(self)
        # Why no process runs.
        self._error: str | None = None
        callbacks = SupervisorCallbacks(self._on_death, self._on_restart, self._on_end)
        connect = partial(launcher.launch, self._on_report)
        self._supervisor = Supervisor(connect, callbacks, launcher.supervision, launcher.epoch)

    async def start(self) -> None:
        """Returns when the engine is ready. Raises the errors of EngineConnection.started()."""
        self.info = await self._supervisor.start()
        self.front_end.max_running = self.info.max_num_seqs

    @property
    def ranks(self) -> Sequence[EngineHandle]:
        """The engines of a group; of one engine, itself."""
        return (self,)

    # ---- requests -----------------------------------------------------------

    def place(
        self, prompt: Prompt | PooledPrompt, cache_salt: str, feature_args: Mapping[str, str], rank: int | None
    ) -> AbstractContextManager[EngineHandle]:
        """The engine for a request: this one. Raises RequestError for another rank."""
        if rank:
            raise RequestError(f"data_parallel_rank must be 0, got {rank}.", param="data_parallel_rank")
        return self._alone

    def check_room(self, now: float) -> None:
        """Raises EngineDeadError, EngineAsleepError or OverloadedError if a request cannot begin."""
        self.check_alive()
        self._readers.check_room(now)

    def add(self, state: RequestState, *, movable: bool = False) -> asyncio.Event:
        """Runs a request of the front end. Returns the event that is set when it may have an output to take. The caller
        ends it with remove(). movable: if the engine dies and others run, the request ends with EngineLostError, unless
        its reader has got some output."""
        event = self._readers.add(state)
        if movable:
            self._movable.add(state)
        if self._suspects.admits(state):
            self._supervisor.connection.send(AddRequests(state.requests))
        return event

    def remove(self, state: RequestState) -> None:
        """Its reader is at the end, or has left; aborts it if it has not ended."""
        self._readers.remove(state)
        self._movable.discard(state)
        self._abort(self.front_end.drop(state, time.monotonic()))

    def abort(self, request_id: str) -> None:
        """Ends a request with finish_reason "abort". Unknown ids are ignored."""
        state = self.front_end.find(request_id)
        if state is not None:
            self._abort(self.front_end.drop(state, time.monotonic()))
            self._readers.wake([state])

    # ---- health -------------------------------------------------------------

    @property
    def health(self) -> Health:
        watchdog = self._supervisor.connection.watchdog
        is_restarting = not self.is_running and not self.has_ended and not self.is_asleep
        stalled = self.is_running and watchdog.stalled
        return Health(self.is_running, stalled, watchdog.silent, self._error, is_restarting, self.is_asleep)

    @property
    def is_running(self) -> bool:
        return self._error is None

    def check_alive(self) -> None:
        """Raises EngineAsleepError, or EngineDeadError if no process is running."""
        if self.is_asleep:
            raise EngineAsleepError(ASLEEP)
        if self._error is not None:
            raise EngineDeadError(self._error)

    async def wait_ended(self) -> None:
        """Returns when the engine has ended and will not be restarted."""
        await self._supervisor.ended.wait()

    async def shutdown(self) -> None:
        """Ends the engine; requests that are still running end with EngineDeadError. Leaves no process, socket or
        directory behind. May be called again."""
        self._on_end(SHUT_DOWN)
        await self._supervisor.stop()

    # ---- sleep --------------------------------------------------------------

    async def sleep(self, *, abort: bool) -> None:
        """Ends the process, and with it all that it has on its devices, until wake_up(). From now on requests are
        refused; those in progress end first, or with abort at once, with EngineAsleepError. Raises EngineDeadError."""
        async with self._changing:
            if self.is_asleep:
                return
            self.check_alive()
            self.is_asleep = True
            try:
                if abort:
                    self._readers.wake(self.front_end.fail_all(lambda: EngineAsleepError(ASLEEP), time.monotonic()))
                await self._drain()
            except BaseException:
                self.is_asleep = False
                raise
            self._error = ASLEEP
            await self._supervisor.stop()
            self.front_end.metrics.engine_lost()
            log.info("the engine sleeps")

    async def _drain(self) -> None:
        """Raises EngineDeadError if the engine has ended for good."""
        while self.front_end.num_unfinished > 0 and not self.has_ended:  # noqa: ASYNC110 - requests tell nobody
            await asyncio.sleep(POLL_SECONDS)
        if self.has_ended:
            raise EngineDeadError(self._error or SHUT_DOWN)

    async def wake_up(self) -> None:
        """Starts another process and returns when it is ready; if there is none, the engine sleeps on. Raises the
        errors of EngineConnection.started(), and OSError."""
        async with self._changing:
            if not self.is_asleep:
                return
            if self.has_ended:
                raise EngineDeadError(SHUT_DOWN)
            began = time.monotonic()
            self.info = await self._supervisor.resume()
            self._error = None
            self.is_asleep = False
            log.info("engine process %d woke up after %.1f s", self.info.pid, time.monotonic() - began)

    # ---- called by the supervisor -------------------------------------------

    def _on_death(self, cause: str) -> bool:
        """Requests with partial output fail; the others move, or wait for the next process. Returns whether one was to
        blame, which fails too."""
        had_started = self.is_running
        self._error = cause
        self.front_end.metrics.engine_lost()
        culprit = self._suspects.record_crash(self.front_end.may_have_run()) if had_started else None
        if culprit is not None:
            self._end_culprit(culprit, cause)
        moving = self._movable if self.others_run() else ()
        self._readers.wake(self.front_end.lose(lambda: EngineDeadError(cause), time.monotonic(), moving))
        return culprit is not None

    def _on_restart(self, info: EngineInfo) -> None:
        """The new process gets the requests that waited for it."""
        self.info = info
        self._error = None
        self.front_end.metrics.engine_restarts += 1
        states = self.front_end.replay()
        self.front_end.metrics.replayed_requests += len(states)
        for state in states:
            log.info("replayed", extra=about(state.request_id))
        self._replay(self._suspects.replay(states))

    def _on_end(self, cause: str) -> None:
        """All requests fail."""
        self.has_ended = True
        self._error = self._error if self._error == SHUT_DOWN else cause
        self._readers.wake(self.front_end.fail_all(lambda: EngineDeadError(cause), time.monotonic()))

    def _end_culprit(self, state: RequestState, cause: str) -> None:
        log.error("engines died each time they ran this request, so it ends", extra=about(state.request_id))
        error = FatalRequestError(f"Engines died each time they ran this request, so it is not run again. {cause}")
        key = self.front_end.unfinished(state)[0].key
        self._readers.wake(self.front_end.fail(key, error, time.monotonic()).changed)

    def _replay(self, states: Iterable[RequestState]) -> None:
        requests = [request for state in states for request in self.front_end.unfinished(state)]
        if requests:
            self._supervisor.connection.send(AddRequests(requests, replayed=True))

    # ---- from the process ---------------------------------------------------

    def _on_report(self, report: Report) -> None:
        now = time.monotonic()
        self.front_end.metrics.stats = report.stats
        for refusal in report.refused:
            self._apply(self.front_end.fail(refusal.key, refusal.failure.error(), now))
        if report.outputs is not None:
            self._apply(self.front_end.update(report.outputs, now))
            self._end_largest(now)
        self._replay(self._suspects.release())

    def _end_largest(self, now: float) -> None:
        """Ends requests whose answers take too much memory."""
        for state, error in self._readers.take_largest(now):
            live = self.front_end.unfinished(state)
            if live:
                self._abort([live[0].key])
                self._apply(self.front_end.fail(live[0].key, error, now))
            state.error = error
            state.forget()
            self._readers.wake([state])

    def _apply(self, update: Update) -> None:
        self._abort(update.abort)
        self._readers.wake(update.changed)

    def _abort(self, keys: list[int]) -> None:
        if keys and self.is_running:
            self._supervisor.connection.send(AbortRequests(keys))


def _ignore(progress: Progress) -> None:
    """Discards the progress."""


def _never() -> bool:
    return False
