"""AsyncEngine, the server's interface to an engine in a process of its own: requests are asynchronous iterators."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tessera.config import Supervision
from tessera.engine.child import EngineChild, executor_path
from tessera.engine.completion import RequestState
from tessera.engine.frontend import FrontEnd, Update
from tessera.engine.input_processor import Prompt, bad_word_texts, no_bad_words, no_tokenizer, with_bad_words
from tessera.engine.messages import AbortRequests, AddRequests, EngineInfo, Report
from tessera.engine.metrics import EngineMetrics
from tessera.engine.spawn import EngineLife, SpawnedEngine
from tessera.engine.supervisor import Charge, Supervisor
from tessera.engine.trials import Trials
from tessera.errors import (
    AnswerTooLargeError,
    EngineDeadError,
    FatalRequestError,
    OverloadedError,
    RequestError,
    TesseraError,
)
from tessera.log import about
from tessera.platform.runner import Progress
from tessera.request import RequestOutput
from tessera.sampling_params import MAX_BAD_WORD_TOKENS, SamplingParams, snapshot
from tessera.text import Tokenizer, Vocabulary

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.text.workers import TextWorkers

log = logging.getLogger(__name__)

T = TypeVar("T")

SHUT_DOWN = "The engine was shut down."
LONG_PROMPT = 4096  # token ids; a prompt of at least this length is checked on another thread
MOST_UNREAD = 1 << 21  # tokens and log probabilities that all answers hold together, about 200 MB at most
SHARE = 2  # an answer may hold half of that
COUNT_SECONDS = 0.25  # between two counts of these
LONG_LISTS = 4096  # the same for the characters and ids in a request's parameters


@dataclass(frozen=True)
class Health:
    """alive: an engine is running. stalled: it is running but seems to hang. error: how the last engine ended.
    restarting: another engine is being started."""

    alive: bool
    stalled: bool
    seconds_since_heartbeat: float
    error: str | None = None
    restarting: bool = False


class AsyncEngine:
    """Bound to the event loop that started it. An engine process that dies or hangs is replaced by a new one, which
    reruns the requests that have not produced any output for their reader."""

    def __init__(
        self,
        config: EngineConfig,
        text: TextWorkers | None,
        executor: str,
        on_progress: Callable[[Progress], None],
        supervision: Supervision,
        epoch: int,
        child: EngineChild | None,
    ) -> None:
        """Does not start the engine; use start()."""
        self.config = config
        self.text = text
        self.info: EngineInfo
        self._front = FrontEnd(config, self.tokenizer, max_model_len=config.model.max_model_len)
        self._readers: dict[RequestState, asyncio.Event] = {}
        """The requests whose readers have not come to the end, and what wakes each. By state, because an id may be used
        again before its first reader is at the end."""
        self._unread = 0
        self._counted = 0.0
        self._numbers = itertools.count()
        self._trials = Trials()
        # One thread: more would wait for each other, and the event loop for all of them, since they never wait.
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="checking")
        self._error: str | None = None
        self._over = False

        def begin(number: int) -> EngineLife:
            first = number == epoch
            spawned = SpawnedEngine(config, executor, number, child if first else None)
            listener = on_progress if first else _ignore  # on_progress follows only the first start
            return EngineLife(spawned, self._hear, listener, supervision.stall_seconds)

        charge = Charge(self._lost, self._found, self._given_up)
        self._supervisor = Supervisor(begin, charge, supervision, epoch)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        text: TextWorkers | None,
        on_progress: Callable[[Progress], None] | None = None,
        executor: str | None = None,
        supervision: Supervision | None = None,
        epoch: int = 1,
        child: EngineChild | None = None,
    ) -> AsyncEngine:
        """Returns when the engine is ready.

        text: the text workers of the model, which the caller ends; None: prompts and completions are token ids only.
        executor: dotted path, to override the one that the configuration implies. child: the process of the first
        engine, if it is already running. Raises the engine's own start-up error (ConfigError, ModelError,
        PlatformError, MemoryBudgetError), or EngineDeadError if its process ended without one."""
        executor = executor or executor_path(config.parallel.world_size)
        engine = cls(config, text, executor, on_progress or _ignore, supervision or Supervision(), epoch, child)
        engine.info = await engine._supervisor.start()
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
        adapter: str = "",
        add_special_tokens: bool = True,
        client: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs as params.output_kind says, as soon as there is one; a slow reader gets several steps' tokens
        in one output. Closing the iterator aborts the request within a step. client: who takes turns with others at the
        text workers. Raises RequestError, OverloadedError and TextWorkerError before the first output, EngineStepError
        and EngineDeadError at any time."""
        arrival = time.monotonic()
        params = snapshot(params)
        prepared = await self.prepare(prompt, params, add_special_tokens=add_special_tokens, client=client)
        self._check_alive()
        if self._unread > MOST_UNREAD // 2 and arrival - self._counted > COUNT_SECONDS:
            self._count_unread(arrival)  # no output of the engine does it if nothing runs
        if self._unread > MOST_UNREAD // 2:
            raise OverloadedError("Too much of other answers waits to be read; try again later.")
        request_id = f"request-{next(self._numbers)}" if request_id is None else request_id
        state = self._front.submit(
            prepared, params, request_id, arrival=arrival, priority=priority, cache_salt=cache_salt, tenant=tenant,
            adapter=adapter,
        )  # fmt: skip
        wake = self._readers[state] = asyncio.Event()
        try:
            if self._trials.admits(state):
                self._supervisor.life.send(AddRequests(state.requests))
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
            del self._readers[state]
            self._abort(self._front.drop(state, time.monotonic()))

    async def prepare(
        self, prompt: str | Sequence[int], params: SamplingParams, *, add_special_tokens: bool = True, client: str = ""
    ) -> Prompt:
        """Tokenizes a prompt and checks every limit, as generate() does, without submitting it. Raises RequestError,
        TextWorkerError."""
        text = prompt if isinstance(prompt, str) else None
        most = self.config.model.max_model_len if params.truncate_prompt_tokens is None else None
        ids = prompt if not isinstance(prompt, str) else await self._encoded(prompt, add_special_tokens, client, most)
        params = await self.tokenize_bad_words(params, client)
        if self.text is not None:
            params = await self.text.check_grammar(params, client)
        is_long = len(ids) >= LONG_PROMPT or _length(params) >= LONG_LISTS
        return await self._run(partial(self._front.prepare, ids, params, text=text), is_long)

    async def tokenize_bad_words(self, params: SamplingParams, client: str = "") -> SamplingParams:
        """params with token ids in place of its bad_words; once for all prompts that have them. Raises RequestError,
        TextWorkerError."""
        if not params.bad_words:
            return params
        if self.text is None:
            raise no_bad_words()
        words = await self.text.encode(bad_word_texts(params), False, owner=client)
        return await self._run(partial(with_bad_words, params, words), _length(params) >= LONG_LISTS)

    async def _run(self, check: Callable[[], T], is_long: bool) -> T:
        if not is_long:
            return check()
        if self._over:
            self._check_alive()
        return await asyncio.get_running_loop().run_in_executor(self._checking, check)

    async def _encoded(self, text: str, add_special_tokens: bool, client: str, most: int | None) -> list[int]:
        if self.text is None:
            raise no_tokenizer()
        (ids,) = await self.text.encode([text], add_special_tokens, max_tokens=most, owner=client)
        return ids

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iterator yields a last output with finish_reason "abort". Unknown ids are ignored."""
        state = self._front.find(request_id)
        if state is not None:
            self._abort(self._front.drop(state, time.monotonic()))
            self._wake([state])

    # ---- properties and health ----------------------------------------------

    @property
    def tokenizer(self) -> Vocabulary | None:
        """Turns token ids into text; `text` encodes and renders. None if prompts and completions are token ids."""
        return None if self.text is None else self.text.vocabulary

    @property
    def metrics(self) -> EngineMetrics:
        if self.text is not None:
            self._front.metrics.text_worker_restarts = self.text.restarts
        return self._front.metrics

    @property
    def health(self) -> Health:
        watchdog = self._supervisor.life.watchdog
        alive = self._error is None
        restarting = not alive and not self._over
        return Health(alive, alive and watchdog.stalled, watchdog.silent, self._error, restarting)

    @property
    def is_running(self) -> bool:
        return self._error is None

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is not running, or has not responded for too long."""
        self._check_alive()
        if self.health.stalled:
            raise EngineDeadError("The engine has not responded for too long.")

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, in this process, so without the time and memory limits of the text workers. Raises
        RequestError if none is loaded."""
        if self.text is None:
            raise RequestError("No tokenizer is loaded (skip_tokenizer_init).")
        return await asyncio.to_thread(Tokenizer.from_folder, self.config.model.tokenizer)

    async def wait_dead(self) -> None:
        """Returns when the engine has ended and will not be restarted."""
        await self._supervisor.over.wait()

    async def shutdown(self) -> None:
        """Ends the engine; requests that are still running end with EngineDeadError. Leaves no process, socket or
        directory behind. May be called again."""
        self._given_up(SHUT_DOWN)
        self._checking.shutdown(wait=False)
        await self._supervisor.stop()

    # ---- called by the supervisor -------------------------------------------

    def _lost(self, cause: str) -> bool:
        """The engine ended. Requests with partial output fail; the others wait for the next engine. Returns whether one
        was to blame, which fails too."""
        ran = self._error is None  # else it died while it started
        self._error = cause
        self._front.metrics.engine_lost()
        guilty = self._trials.lost(self._front.may_have_run()) if ran else None
        if guilty is not None:
            self._end_guilty(guilty, cause)
        self._wake(self._front.lose(lambda: EngineDeadError(cause), time.monotonic()))
        return guilty is not None

    def _found(self, info: EngineInfo) -> None:
        """A new engine is ready and gets the requests that waited for it."""
        self.info = info
        self._error = None
        self._front.metrics.engine_restarts += 1
        states = self._front.replay()
        self._front.metrics.replayed_requests += len(states)
        for state in states:
            log.info("replayed", extra=about(state.request_id))
        self._replay(self._trials.replay(states))

    def _end_guilty(self, state: RequestState, cause: str) -> None:
        log.error("engines died each time they ran this request, so it ends", extra=about(state.request_id))
        error = FatalRequestError(f"Engines died each time they ran this request, so it is not run again. {cause}")
        key = self._front.unfinished(state)[0].key
        self._wake(self._front.fail(key, error, time.monotonic()).changed)

    def _replay(self, states: Iterable[RequestState]) -> None:
        requests = [request for state in states for request in self._front.unfinished(state)]
        if requests:
            self._supervisor.life.send(AddRequests(requests, replayed=True))

    def _given_up(self, cause: str) -> None:
        """There will be no other engine: all requests fail."""
        self._over = True
        self._error = self._error if self._error == SHUT_DOWN else cause
        self._wake(self._front.fail_all(lambda: EngineDeadError(cause), time.monotonic()))

    # ---- from the engine ----------------------------------------------------

    def _hear(self, answer: Report) -> None:
        now = time.monotonic()
        self._front.metrics.stats = answer.stats
        for refusal in answer.refused:
            self._apply(self._front.fail(refusal.key, refusal.failure.error(), now))
        if answer.outputs is not None:
            self._apply(self._front.update(answer.outputs, now))
            if now - self._counted > COUNT_SECONDS:
                self._end_unread(now)
        self._replay(self._trials.go_on())

    def _end_unread(self, now: float) -> None:
        """Ends requests whose answers take too much memory: each that holds more than its own share, then those that
        hold most until all together hold no more than they may."""
        held = self._count_unread(now)
        for state, unread in sorted(held.items(), key=lambda item: -item[1]):
            if unread <= MOST_UNREAD // SHARE and self._unread <= MOST_UNREAD:
                break
            self._unread -= unread
            error: TesseraError = OverloadedError("All answers together take too much memory; try again later.")
            if unread > MOST_UNREAD // SHARE:
                error = AnswerTooLargeError(
                    "This answer takes too much memory: read it faster if it is a stream, or ask for fewer or shorter "
                    "answers (n, max_tokens) or fewer log probabilities."
                )
            log.warning("ended, for %d values that nobody reads", unread, extra=about(state.request_id))
            live = self._front.unfinished(state)
            if live:
                self._abort([live[0].key])
                self._apply(self._front.fail(live[0].key, error, now))
            state.error = error
            state.forget()
            self._wake([state])

    def _count_unread(self, now: float) -> dict[RequestState, int]:
        self._counted = now
        held = {state: state.num_unread for state in self._readers}
        self._unread = sum(held.values())
        return held

    def _apply(self, update: Update) -> None:
        self._abort(update.abort)
        self._wake(update.changed)

    def _wake(self, states: Iterable[RequestState]) -> None:
        for state in states:
            wake = self._readers.get(state)
            if wake is not None:
                wake.set()

    def _abort(self, keys: list[int]) -> None:
        if keys and self._error is None:
            self._supervisor.life.send(AbortRequests(keys))

    def _check_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(self._error)


def _length(params: SamplingParams) -> int:
    """Characters and ids that checking the parameters reads."""
    stops = sum(map(len, params.stop or ()))
    words = MAX_BAD_WORD_TOKENS * (len(params.bad_words or ()) + len(params.bad_words_ids or ()))
    return stops + words + len(params.allowed_token_ids or ())


def _ignore(progress: Progress) -> None:
    """Discards the progress."""
