"""AsyncEngine, the server's interface to an engine in a process of its own: requests are asynchronous iterators."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tessera.config import Supervision
from tessera.engine.child import EngineChild, executor_path
from tessera.engine.engine_handle import EngineHandle, EngineLauncher, Health
from tessera.engine.frontend import EngineLostError
from tessera.engine.input_processor import (
    NO_COLUMNS,
    PooledPrompt,
    Prompt,
    bad_word_texts,
    no_bad_words,
    no_tokenizer,
    with_bad_words,
)
from tessera.engine.messages import EngineInfo, EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.engine.truncation import TextLimit
from tessera.errors import EngineDeadError, RequestError
from tessera.platform.runner import Progress
from tessera.pooling_params import PoolingParams
from tessera.request import NO_ARGS, PoolingRequestOutput, RequestOutput
from tessera.sampling_params import MAX_BAD_WORD_TOKENS, SamplingParams, snapshot
from tessera.text import Tokenizer, Vocabulary

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.engine.engine_group import EngineGroup
    from tessera.media.placed import PlacedMedia
    from tessera.media.workers import MediaWorkers
    from tessera.text.tokenizer import TruncationSide
    from tessera.text.workers import TextWorkers

T = TypeVar("T")

LONG_PROMPT = 4096  # token ids; a prompt of at least this length is checked on another thread
LONG_LISTS = 4096  # the same for the characters and ids in a request's parameters


class AsyncEngine:
    """Bound to the event loop that started it. An engine process that dies or hangs is replaced by a new one, which
    reruns the requests that have not produced any output for their reader; where there are several engines, another one
    does at once."""

    def __init__(
        self, handle: EngineHandle | EngineGroup, text: TextWorkers | None, media: MediaWorkers | None = None
    ) -> None:
        """Does not start the engine; use start()."""
        self.config = handle.config
        self.text = text
        self.media = media
        self._handle = handle
        self._numbers = itertools.count()
        # One thread: more would wait for each other, and the event loop for all of them, since they never wait.
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="checking")

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        text: TextWorkers | None,
        media: MediaWorkers | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        executor: str | None = None,
        supervision: Supervision | None = None,
        epoch: int = 1,
        child: EngineChild | None = None,
    ) -> AsyncEngine:
        """Returns when the engine is ready.

        text: the text workers of the model, which the caller ends; None: prompts and completions are token ids only.
        media: the same for images; None: prompts have none.
        executor: dotted path, to override the one that the configuration implies. child: the process of the first
        engine, if it is already running. Raises the engine's own start-up error (ConfigError, ModelError,
        PlatformError, MemoryBudgetError), or EngineDeadError if its process ended without one."""
        executor = executor or executor_path(config.parallel.world_size, config.parallel.nnodes)
        launcher = EngineLauncher(config, executor, supervision or Supervision(), epoch, child, on_progress)
        vocabulary = None if text is None else text.vocabulary
        engine = cls(_engines(launcher, vocabulary), text, media)
        await engine._handle.start()
        return engine

    # ---- requests -----------------------------------------------------------

    async def generate(
        self,
        prompt: str | Sequence[int] | Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
        add_special_tokens: bool = True,
        client: str = "",
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs as params.output_kind says, as soon as there is one; a slow reader gets several steps' tokens
        in one output. Closing the iterator aborts the request within a step. prompt: one that was prepared with these
        params is not checked again. client: who takes turns with others at the text workers. data_parallel_rank: of the
        engine that runs it, unless it dies; None: whichever has most of the prompt cached. Raises RequestError,
        OverloadedError and TextWorkerError before the first output, EngineStepError and EngineDeadError at any time."""
        arrival = time.monotonic()
        params = snapshot(params)
        if isinstance(prompt, Prompt):
            prepared = prompt
        else:
            prepared = await self.prepare(prompt, params, add_special_tokens=add_special_tokens, client=client)
        request_id = f"request-{next(self._numbers)}" if request_id is None else request_id
        moves, finished = self._handle.num_moves, False
        while not finished:
            with self._handle.place(prepared, cache_salt, feature_args, data_parallel_rank) as engine:
                engine.check_room(arrival)
                state = engine.front_end.submit(
                    prepared, params, request_id, arrival=arrival, priority=priority, cache_salt=cache_salt,
                    tenant=tenant, feature_args=feature_args,
                )  # fmt: skip
                try:
                    has_output = engine.add(state, movable=moves > 0)
                    while not finished:
                        output = state.take()
                        if output is None:
                            await has_output.wait()
                            has_output.clear()
                        else:
                            yield output
                            finished = output.finished
                except EngineLostError:
                    moves, data_parallel_rank = moves - 1, None
                finally:
                    engine.remove(state)

    async def encode(
        self,
        prompt: str | Sequence[int] | PooledPrompt,
        params: PoolingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
        add_special_tokens: bool = True,
        client: str = "",
        data_parallel_rank: int | None = None,
    ) -> PoolingRequestOutput:
        """What the model's head makes of a prompt. Cancelling it aborts the request within a step. The arguments are
        those of generate(), and so are the errors. One prepared by prepare_pooled() is not checked again."""
        arrival = time.monotonic()
        if not isinstance(prompt, PooledPrompt):
            prompt = await self.prepare_pooled(prompt, params, add_special_tokens=add_special_tokens, client=client)
        request_id = f"request-{next(self._numbers)}" if request_id is None else request_id
        moves, output = self._handle.num_moves, None
        while output is None:
            with self._handle.place(prompt, cache_salt, feature_args, data_parallel_rank) as engine:
                engine.check_room(arrival)
                state = engine.front_end.submit_pooled(
                    prompt, request_id, arrival=arrival, priority=priority, cache_salt=cache_salt, tenant=tenant,
                    feature_args=feature_args,
                )  # fmt: skip
                try:
                    has_output = engine.add(state, movable=moves > 0)
                    while (output := state.take()) is None:
                        await has_output.wait()
                        has_output.clear()
                except EngineLostError:
                    moves, data_parallel_rank = moves - 1, None
                finally:
                    engine.remove(state)
        if output.pooled is None:
            raise RequestError("This request was aborted.", code="aborted")
        return PoolingRequestOutput.from_output(output)

    async def prepare_pooled(
        self,
        prompt: str | Sequence[int],
        params: PoolingParams,
        *,
        pooled_from: int = 0,
        columns: Mapping[str, float] = NO_COLUMNS,
        media: Sequence[PlacedMedia] = (),
        add_special_tokens: bool = True,
        client: str = "",
    ) -> PooledPrompt:
        """Tokenizes a prompt and checks every limit, as encode() does, without submitting it. pooled_from: the position
        of the first token behind an instruction. columns: of the input batch. media: of a prompt of token ids, in order
        of their places. Raises RequestError, TextWorkerError."""
        if isinstance(prompt, str):
            longest = self.config.model.max_model_len
            limit = TextLimit.from_params(params.truncate_prompt_tokens, params.truncation_side, longest)
            ids: Sequence[int] = await self._encoded(prompt, add_special_tokens, client, limit.max_tokens, limit.side)
        else:
            ids = prompt
        prepare = self._handle.front_end.prepare_pooled
        text = prompt if isinstance(prompt, str) else None
        check = partial(prepare, ids, params, text=text, pooled_from=pooled_from, columns=columns, media=media)
        return await self._run(check, len(ids) >= LONG_PROMPT)

    async def prepare(
        self, prompt: str | Sequence[int], params: SamplingParams, *, add_special_tokens: bool = True, client: str = ""
    ) -> Prompt:
        """Tokenizes a prompt and checks every limit, as generate() does, without submitting it. Raises RequestError,
        TextWorkerError."""
        text = prompt if isinstance(prompt, str) else None
        limit = self.config.model.max_prompt_len if params.truncate_prompt_tokens is None else None
        ids = prompt if not isinstance(prompt, str) else await self._encoded(prompt, add_special_tokens, client, limit)
        return await self.prepare_prompt(ids, await self.prepare_params(params, client), text)

    async def prepare_params(self, params: SamplingParams, client: str = "") -> SamplingParams:
        """params with token ids in place of its bad_words, and with a grammar that was compiled; once for all prompts
        that have them. Raises RequestError, TextWorkerError."""
        if params.bad_words:
            if self.text is None:
                raise no_bad_words()
            words = await self.text.encode(bad_word_texts(params), False, owner=client)
            params = await self._run(partial(with_bad_words, params, words), _length(params) >= LONG_LISTS)
        return params if self.text is None else await self.text.check_grammar(params, client)

    async def prepare_prompt(
        self, ids: Sequence[int], params: SamplingParams, text: str | None = None, media: Sequence[PlacedMedia] = ()
    ) -> Prompt:
        """Checks a prompt against every limit. params: of prepare_params(). media: in order of their places. Raises
        RequestError."""
        is_long = len(ids) >= LONG_PROMPT or _length(params) >= LONG_LISTS
        check = partial(self._handle.front_end.prepare, ids, params, text=text, media=media)
        return await self._run(check, is_long)

    async def _run(self, check: Callable[[], T], is_long: bool) -> T:
        if not is_long:
            return check()
        if self._handle.has_ended:
            self._handle.check_alive()
        return await asyncio.get_running_loop().run_in_executor(self._checking, check)

    async def _encoded(
        self,
        text: str,
        add_special_tokens: bool,
        client: str,
        max_tokens: int | None,
        truncation_side: TruncationSide | None = None,
    ) -> list[int]:
        if self.text is None:
            raise no_tokenizer()
        (ids,) = await self.text.encode(
            [text], add_special_tokens, max_tokens=max_tokens, truncation_side=truncation_side, owner=client
        )
        return ids

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iterator yields a last output with finish_reason "abort". Unknown ids are ignored."""
        self._handle.abort(request_id)

    # ---- properties and health ----------------------------------------------

    @property
    def tokenizer(self) -> Vocabulary | None:
        """Turns token ids into text; `text` encodes and renders. None if prompts and completions are token ids."""
        return None if self.text is None else self.text.vocabulary

    @property
    def info(self) -> EngineInfo:
        """What the engine runs on, since its last start."""
        return self._handle.info

    @property
    def ranks(self) -> Sequence[EngineHandle]:
        """Each engine: one, unless there is data parallelism."""
        return self._handle.ranks

    @property
    def stats(self) -> EngineStats:
        """The state of all schedulers together."""
        each = [rank.front_end.metrics.stats for rank in self.ranks]
        if len(each) == 1:
            return each[0]
        return EngineStats(
            num_running=sum(stats.num_running for stats in each),
            num_waiting=sum(stats.num_waiting for stats in each),
            kv_usage=sum(stats.kv_usage for stats in each) / len(each),
        )

    @property
    def metrics(self) -> EngineMetrics:
        """Of the engine, or of the first one, with what this process counts."""
        metrics = self.ranks[0].front_end.metrics
        if self.text is not None:
            metrics.text_worker_restarts = self.text.restarts
        if self.media is not None:
            metrics.media_worker_restarts = self.media.restarts
        return metrics

    def all_adapters(self) -> list[tuple[set[str], set[str]]]:
        """Of each engine, by rank: FrontEnd.adapters()."""
        return [rank.front_end.adapters() for rank in self.ranks]

    def all_metrics(self) -> list[tuple[EngineMetrics, EngineInfo]]:
        """Of each engine, by rank, with what it runs on; the first also has what this process counts."""
        return [(self.metrics if rank is self.ranks[0] else rank.front_end.metrics, rank.info) for rank in self.ranks]

    @property
    def health(self) -> Health:
        return self._handle.health

    @property
    def is_running(self) -> bool:
        return self._handle.is_running

    @property
    def num_unfinished(self) -> int:
        """Completions that have not ended."""
        return sum(rank.front_end.num_unfinished for rank in self.ranks)

    def check_alive(self) -> None:
        """Raises EngineAsleepError, or EngineDeadError if the engine is not running."""
        self._handle.check_alive()

    async def check_health(self) -> None:
        """As check_alive(); raises EngineDeadError too, if the engine has not responded for too long."""
        self.check_alive()
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
        await self._handle.wait_ended()

    async def sleep(self, *, abort: bool = False) -> None:
        """Ends the engine's processes, and with them all that they have on their devices, until wake_up(). From now on
        requests are refused; those in progress end first, or with abort at once, with EngineAsleepError. Raises
        EngineDeadError."""
        await self._handle.sleep(abort=abort)

    async def wake_up(self) -> None:
        """Returns when the engine is ready again; if it cannot start, it sleeps on. Raises the errors of start(), and
        OSError."""
        await self._handle.wake_up()

    async def shutdown(self) -> None:
        """Ends the engine; requests that are still running end with EngineDeadError. Leaves no process, socket or
        directory behind. May be called again."""
        self._checking.shutdown(wait=False)
        await self._handle.shutdown()


def _engines(launcher: EngineLauncher, vocabulary: Vocabulary | None) -> EngineHandle | EngineGroup:
    """As many engines as the configuration says."""
    parallel = launcher.config.parallel
    if parallel.data_parallel_size == 1:
        return EngineHandle(launcher, vocabulary)
    # Not at the top: one engine needs none of it.
    from tessera.engine.engine_group import EngineGroup

    launchers = [
        replace(
            launcher,
            config=replace(launcher.config, parallel=replace(parallel, data_parallel_rank=rank)),
            child=launcher.child if rank == 0 else None,
            on_progress=launcher.on_progress if rank == 0 else None,
        )
        for rank in range(parallel.data_parallel_size)
    ]
    return EngineGroup(launchers, vocabulary)


def _length(params: SamplingParams) -> int:
    """Characters and ids that checking the parameters reads."""
    stops = sum(map(len, params.stop or ()))
    words = MAX_BAD_WORD_TOKENS * (len(params.bad_words or ()) + len(params.bad_words_ids or ()))
    return stops + words + len(params.allowed_token_ids or ())
