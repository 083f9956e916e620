"""AsyncEngine: what the server holds. Requests as asynchronous iterators, over an engine in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.engine.admission import Prompt
from tessera.engine.frontend import FrontEnd, RequestState, Update
from tessera.engine.messages import (
    AbortRequests,
    AddRequests,
    Answer,
    ControlAnswer,
    ControlRequest,
    EngineInfo,
    Failure,
    Ready,
    Report,
    Shutdown,
    Starting,
)
from tessera.engine.metrics import EngineMetrics
from tessera.engine.spawn import SpawnedEngine, cause_of
from tessera.errors import EngineDeadError, RequestError
from tessera.executor.base import executor_path
from tessera.platform.runner import Progress
from tessera.request import RequestOutput, SamplingParams
from tessera.step import Control, ControlResult

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.text import Tokenizer

log = logging.getLogger(__name__)

STALLED = 30.0  # seconds without a sign of life
SHUTDOWN = 5.0  # seconds the engine has to end in order
LAST_WORDS = 1.0  # seconds that what a process said before it ended may be on its way
SHUT_DOWN = "The engine was shut down."
LONG_PROMPT = 4096  # characters or ids from which on a prompt is prepared on another thread


@dataclass(frozen=True)
class Health:
    """alive: its process runs and was not told to end. stalled: it runs, but said nothing for STALLED seconds. error:
    how it ended."""

    alive: bool
    stalled: bool
    seconds_since_heartbeat: float
    error: str | None = None


class AsyncEngine:
    """Belongs to the event loop it was started in."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        spawned: SpawnedEngine,
        on_progress: Callable[[Progress], None],
    ) -> None:
        """Listens to a process that was just started; see start()."""
        self.config = config
        self.tokenizer = tokenizer
        self._front = FrontEnd(config, tokenizer, max_model_len=config.model.max_model_len)
        self._spawned = spawned
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._wakes: dict[str, asyncio.Event] = {}
        self._controls: dict[int, asyncio.Future[ControlResult]] = {}
        self._numbers = itertools.count()
        self._heartbeat = time.monotonic()
        self._error: str | None = None
        self._exited = asyncio.Event()
        self._dead = asyncio.Event()
        self._closing = False
        self._loop.add_reader(spawned.descriptor, self._receive)
        spawned.on_exit(self._tell_exit)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        tokenizer: Tokenizer | None,
        on_progress: Callable[[Progress], None] | None = None,
        executor: str | None = None,
        epoch: int = 1,
    ) -> AsyncEngine:
        """Returns when the engine is ready. executor: dotted path, in place of the one the configuration needs. Raises
        what the engine's start raised (ConfigError, ModelError, PlatformError, MemoryBudgetError), EngineDeadError
        where its process just ended."""
        spawned = SpawnedEngine(config, executor or executor_path(config), epoch)
        engine = cls(config, tokenizer, spawned, on_progress or _ignore)
        try:
            await engine._started
        except BaseException:
            engine._close()
            raise
        return engine

    # ---- requests -----------------------------------------------------------

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """What params.output_kind has to say, as soon as there is something; a slow reader gets more at once. Closing
        it aborts the request within a step. Raises RequestError, OverloadedError (both before the first output),
        EngineStepError, EngineDeadError."""
        arrival = time.monotonic()
        prepared = await self._prepare(prompt, params, add_special_tokens)
        self._check_alive()
        request_id = f"request-{next(self._numbers)}" if request_id is None else request_id
        state = self._front.submit(
            prepared, params, request_id, arrival=arrival, priority=priority, cache_salt=cache_salt, tenant=tenant
        )
        wake = self._wakes[request_id] = asyncio.Event()
        try:
            self._spawned.send(AddRequests(state.requests))
            finished = False
            while not finished:
                output = state.take()
                if output is None:
                    await wake.wait()
                    wake.clear()
                else:
                    yield output
                    finished = output.finished
        finally:
            del self._wakes[request_id]
            self._abort(self._front.drop(state, time.monotonic()))

    async def abort(self, request_id: str) -> None:
        """Ends a request from outside; its iterator ends with finish_reason "abort". Unknown ids are ignored."""
        state = self._front.find(request_id)
        if state is not None:
            self._abort(self._front.drop(state, time.monotonic()))
            self._wake([state])

    async def control(self, verb: Control) -> ControlResult:
        """Raises EngineDeadError."""
        self._check_alive()
        number = next(self._numbers)
        result: asyncio.Future[ControlResult] = self._loop.create_future()
        self._controls[number] = result
        try:
            self._spawned.send(ControlRequest(number, verb))
            return await result
        finally:
            del self._controls[number]

    # ---- what it is and how it is -------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._started.result()

    @property
    def metrics(self) -> EngineMetrics:
        return self._front.metrics

    @property
    def health(self) -> Health:
        silent = time.monotonic() - self._heartbeat
        alive = self._error is None
        return Health(alive, alive and silent > STALLED, silent, self._error)

    @property
    def is_running(self) -> bool:
        return self._error is None

    async def check_health(self) -> None:
        """Raises EngineDeadError where the engine does not run, or has said nothing for STALLED seconds."""
        self._check_alive()
        if self.health.stalled:
            raise EngineDeadError(f"The engine has said nothing for {STALLED:.0f} seconds.")

    async def get_tokenizer(self) -> Tokenizer:
        """Raises RequestError where there is none."""
        if self.tokenizer is None:
            raise RequestError("There is no tokenizer (skip_tokenizer_init).")
        return self.tokenizer

    async def wait_dead(self) -> None:
        """Returns when the engine's process has ended though nobody told it to."""
        await self._dead.wait()

    async def shutdown(self) -> None:
        """Ends the engine; what still runs is aborted. Nothing of it is left: no process, no socket, no directory. May
        be called again."""
        self._closing = True
        self._fail_all(SHUT_DOWN)
        try:
            if not self._exited.is_set():
                self._spawned.send(Shutdown())
                await asyncio.wait_for(self._exited.wait(), SHUTDOWN)
        except TimeoutError:
            log.warning("the engine did not end in order and is killed")
        finally:
            self._close()

    # ---- from the engine ----------------------------------------------------

    def _receive(self) -> None:
        """What has arrived. An error here would leave requests waiting for ever, so all of them end with it."""
        try:
            for answer in self._spawned.receive():
                self._handle(answer)
        except Exception:
            self._fail_all("The front end failed; the log says why.")
            raise

    def _handle(self, answer: Answer) -> None:
        now = self._heartbeat = time.monotonic()
        match answer:
            case Report(stats, progressed, refused):
                self._front.metrics.stats = stats
                for refusal in refused:
                    self._apply(self._front.fail(refusal.key, refusal.failure.error(), now))
                if progressed is not None:
                    self._apply(self._front.update(progressed, now))
            case Starting(phase, done, total):
                self._on_progress(Progress(phase, done, total))
            case Ready(info):
                self._settle(lambda: self._started.set_result(info))
            case Failure():
                error = answer.error()
                self._settle(lambda: self._started.set_exception(error))
            case ControlAnswer(number, result):
                waiting = self._controls.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(result)

    def _apply(self, update: Update) -> None:
        self._abort(update.abort)
        self._wake(update.changed)

    def _wake(self, states: Iterable[RequestState]) -> None:
        for state in states:
            wake = self._wakes.get(state.request_id)
            if wake is not None:
                wake.set()

    def _settle(self, settle: Callable[[], None]) -> None:
        if not self._started.done():
            settle()

    # ---- the end ------------------------------------------------------------

    def _tell_exit(self, code: int) -> None:
        """On the thread that waits for the process."""
        # The loop may be closed by now, and then nobody wants to know.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        self._exited.set()
        if self._closing:
            return
        self._receive()
        if self._started.done():
            self._bury(code)
        else:
            self._loop.call_later(LAST_WORDS, self._bury, code)

    def _bury(self, code: int) -> None:
        if self._closing:
            return
        error = f"The engine's process {cause_of(code)}."
        log.error("engine process %d: %s", self._spawned.pid, error)
        self._fail_all(error)
        self._settle(lambda: self._started.set_exception(EngineDeadError(error)))
        self._dead.set()

    def _fail_all(self, error: str) -> None:
        self._error = self._error or error
        self._wake(self._front.fail_all(lambda: EngineDeadError(error), time.monotonic()))
        for waiting in self._controls.values():
            if not waiting.done():
                waiting.set_exception(EngineDeadError(error))

    def _close(self) -> None:
        self._closing = True
        self._error = self._error or SHUT_DOWN
        if not self._spawned.closed:
            self._loop.remove_reader(self._spawned.descriptor)
            self._spawned.close()

    def _abort(self, keys: list[int]) -> None:
        if keys and self._error is None:
            self._spawned.send(AbortRequests(keys))

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(self._error)

    async def _prepare(self, prompt: str | Sequence[int], params: SamplingParams, add_special_tokens: bool) -> Prompt:
        if len(prompt) < LONG_PROMPT:
            return self._front.prepare(prompt, params, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._front.prepare, prompt, params, add_special_tokens=add_special_tokens)


def _ignore(progress: Progress) -> None:
    """Nobody wants to know."""
