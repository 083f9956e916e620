"""The front end that LLM and AsyncEngine share: turns prompts into requests, and the engine's tokens into completions.
It does no input or output of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.engine.completion import CompletionState, RequestState
from tessera.engine.input_processor import NO_COLUMNS, NO_SAMPLING, InputProcessor, PooledPrompt, Prompt
from tessera.engine.logprobs import PromptLogprobsBuffer
from tessera.engine.metrics import EngineMetrics
from tessera.engine.pooling import activated, of_steps
from tessera.errors import EngineDeadError, EngineStepError, QueueFullError, RequestError, TesseraError
from tessera.lora import NAME as LORA
from tessera.media.placed import PlacedMedia
from tessera.pooling_params import PoolingParams
from tessera.request import NO_ARGS, Request
from tessera.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.scheduler.outputs import (
        EngineCoreOutputs,
        FinishedRequest,
        RequestPooled,
        RequestPromptLogprobs,
        StartedRequest,
    )
    from tessera.step import RowLogprobs
    from tessera.text import StopStrings, Vocabulary


class EngineLostError(EngineDeadError):
    """The engine is gone, the request's reader has got nothing, and another engine can run it."""


@dataclass
class Update:
    """The effect of a step."""

    # States that may have a new output.
    changed: list[RequestState] = field(default_factory=list)
    # Keys of the requests that the engine must abort, because a stop string was found or a sibling failed.
    abort: list[int] = field(default_factory=list)


class FrontEnd:
    """The requests of one engine. submit() creates them, update() processes the outputs of a step, and drop() ends
    them."""

    def __init__(
        self, config: EngineConfig, vocabulary: Vocabulary | None, *, max_model_len: int, shorten: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self.metrics = EngineMetrics(max_model_len)
        self._input = InputProcessor(config, vocabulary, max_model_len, shorten=shorten)
        self._pooler = config.model.pooler
        self._max_waiting = config.scheduler.max_waiting
        # Requests that run at once; an engine in another process says it when it is ready.
        self.max_running = config.scheduler.max_num_seqs
        self._live: dict[int, tuple[RequestState, CompletionState]] = {}
        self._by_id: dict[str, RequestState] = {}

    @property
    def num_unfinished(self) -> int:
        """Number of unfinished completions."""
        return len(self._live)

    def adapters(self) -> tuple[set[str], set[str]]:
        """Folders of the LoRA adapters of requests that have started and have not ended, and of those that wait to
        start. One adapter may be among both."""
        running: set[str] = set()
        waiting: set[str] = set()
        for state in self._by_id.values():
            if (folder := state.requests[0].feature_args.get(LORA)) is not None:
                (running if state.started else waiting).add(folder)
        return running, waiting

    def prepare(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        text: str | None = None,
        media: Sequence[PlacedMedia] = (),
    ) -> Prompt:
        """Checks a prompt against every limit. text: the text that the ids come from, if any. params: without
        bad_words; see with_bad_words(). media: in order of their places. Raises RequestError. May run on another
        thread."""
        return self._input.prepare(ids, params, text=text, media=media)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        arrival: float,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        feature_args: Mapping[str, str] = NO_ARGS,
    ) -> RequestState:
        """Creates the state of a request; the caller sends its `requests` to the engine. params: those the prompt was
        prepared with. arrival: seconds on time.monotonic(). Raises RequestError, QueueFullError."""
        self._check_room(request_id, params.n)
        requests = self._input.requests(
            prompt,
            request_id,
            arrival=arrival,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            feature_args=feature_args,
        )
        ids = prompt.ids.tolist()
        begin = ids if prompt.begin is None else prompt.begin.tolist()
        completions = [self._completion(index, params, begin, arrival, prompt.stops) for index in range(params.n)]
        scores = None if params.prompt_logprobs is None else PromptLogprobsBuffer(len(ids), self.vocabulary)
        return self._track(
            RequestState(request_id, params, prompt.text, ids, requests, completions, scores, prompt.stops)
        )

    def prepare_pooled(
        self,
        ids: Sequence[int],
        params: PoolingParams,
        *,
        text: str | None = None,
        pooled_from: int = 0,
        columns: Mapping[str, float] = NO_COLUMNS,
        media: Sequence[PlacedMedia] = (),
    ) -> PooledPrompt:
        """prepare() for a request that pools. pooled_from: the position of the first token behind an instruction.
        columns: of the input batch. media: in order of their places. Raises RequestError. May run on another
        thread."""
        return self._input.prepare_pooled(ids, params, text=text, pooled_from=pooled_from, columns=columns, media=media)

    def submit_pooled(self, prompt: PooledPrompt, request_id: str, *, arrival: float, **options: Any) -> RequestState:
        """submit() for a request that pools. options: those of submit()."""
        self._check_room(request_id, 1)
        request = self._input.pooling_request(
            prompt, request_id, arrival=arrival, **{"priority": 0, "cache_salt": "", **options}
        )
        ids = prompt.ids.tolist()
        completion = self._completion(0, NO_SAMPLING, ids, arrival, None)
        return self._track(
            RequestState(
                request_id, NO_SAMPLING, prompt.text, ids, [request], [completion], None, None, prompt.params,
            )
        )  # fmt: skip

    def _check_room(self, request_id: str, number: int) -> None:
        """number: of completions."""
        if request_id in self._by_id:
            raise RequestError(f"A request with the id '{request_id}' is already running.", param="request_id")
        if len(self._live) + number > self.max_running + self._max_waiting:
            error = QueueFullError(f"{len(self._live)} requests are already running or waiting; try again later.")
            self.metrics.admission_rejections[error.limit] += 1
            raise error

    def _track(self, state: RequestState) -> RequestState:
        self._by_id[state.request_id] = state
        for request, completion in zip(state.requests, state.completions, strict=True):
            self._live[request.key] = (state, completion)
        return state

    def update(self, outputs: EngineCoreOutputs, now: float) -> Update:
        """Processes the outputs of a step. now: seconds on time.monotonic(). Tokens of completions that have ended are
        ignored: they were in flight at that time."""
        update = Update()
        for started in outputs.started:
            self._start(started)
        for scored in outputs.prompt_logprobs:
            self._add_prompt_logprobs(scored)
        for pooled in outputs.pooled:
            self._add_pooled(pooled)
        for key in outputs.preempted:
            if key in self._live:
                self._live[key][1].num_preemptions += 1
        finished = {end.key: end for end in outputs.finished}
        logprobs = {row.key: row.logprobs for row in outputs.logprobs}
        for key, tokens in _by_key(outputs):
            self._advance(key, tokens, logprobs.get(key), finished.pop(key, None), now, update)
        for key, end in finished.items():
            self._advance(key, (), None, end, now, update)
        self.metrics.stepped()
        return update

    def fail(self, key: int, error: TesseraError, now: float) -> Update:
        """Ends a request that the engine refused or could not continue, with all its completions."""
        found = self._live.get(key)
        if found is None:
            return Update()
        state = found[0]
        state.error = error
        if isinstance(error, QueueFullError):
            self.metrics.admission_rejections[error.limit] += 1
        return Update([state], [other for other in self._end(state, "error", now) if other != key])

    def drop(self, state: RequestState, now: float) -> list[int]:
        """Ends a request, if it has not ended, with finish_reason "abort". Returns the keys that the engine must
        abort."""
        return self._end(state, "abort", now)

    def drop_all(self, now: float) -> list[int]:
        """Ends all requests. Returns the keys that the engine must abort."""
        return [key for state in list(self._by_id.values()) for key in self.drop(state, now)]

    def find(self, request_id: str) -> RequestState | None:
        return self._by_id.get(request_id)

    def fail_all(self, error: Callable[[], TesseraError], now: float) -> list[RequestState]:
        """The engine is gone: ends every request with its own error. Returns their states."""
        states = list(self._by_id.values())
        for state in states:
            state.error = error()
            self._end(state, "error", now)
        return states

    def lose(
        self, error: Callable[[], TesseraError], now: float, moving: Collection[RequestState] = ()
    ) -> list[RequestState]:
        """The engine is gone and may be replaced. Ends each request whose reader got some output with its own error,
        and of the others those that are moving with EngineLostError; returns their states. The rest starts over; see
        replay()."""
        moved = [state for state in self._by_id.values() if state in moving and not state.was_read]
        for state in moved:
            self._withdraw(state)
        lost = [state for state in self._by_id.values() if state.was_read]
        for state in lost:
            state.error = error()
            self._end(state, "error", now)
        for key, (state, completion) in self._live.items():
            prompt, arrival = state.requests[completion.index].prompt.tolist(), completion.times.arrival
            fresh = self._completion(completion.index, state.params, prompt, arrival, state.stops)
            state.completions[completion.index] = fresh
            self._live[key] = (state, fresh)
        return [*lost, *moved]

    def _withdraw(self, state: RequestState) -> None:
        """Another engine runs it, which counts it too."""
        state.error = EngineLostError("The engine died; another one runs this request.")
        for request in self.unfinished(state):
            del self._live[request.key]
        state.num_unfinished = 0
        del self._by_id[state.request_id]
        self.metrics.replayed_requests += 1

    def replay(self) -> list[RequestState]:
        """The unfinished requests, for the next engine."""
        return list(self._by_id.values())

    def may_have_run(self) -> list[RequestState]:
        """The unfinished requests that an engine which is gone may have run: those that started, and the next of those
        that waited, as many as can run at once, because an engine says what started only after the step."""
        states = sorted(self._by_id.values(), key=lambda state: state.requests[0].priority)
        waited = [state for state in states if not state.started]
        return [state for state in states if state.started] + waited[: self.max_running]

    def unfinished(self, state: RequestState) -> list[Request]:
        """The requests of a state's unfinished completions."""
        return [request for request in state.requests if request.key in self._live]

    def _completion(
        self, index: int, params: SamplingParams, prompt: list[int], arrival: float, stops: StopStrings | None
    ) -> CompletionState:
        return CompletionState(index, params, self.vocabulary, prompt, arrival, stops)

    def _start(self, started: StartedRequest) -> None:
        found = self._live.get(started.key)
        if found is None or found[1].times.first_scheduled:
            return
        state, completion = found
        if completion.index == 0:
            state.num_cached_tokens = started.num_cached_tokens
        completion.num_cached_tokens = started.num_cached_tokens
        completion.times.first_scheduled = started.scheduled_at
        self.metrics.scheduled(completion.times)

    def _add_prompt_logprobs(self, scored: RequestPromptLogprobs) -> None:
        found = self._live.get(scored.key)
        if found is not None and found[0].prompt_logprobs is not None:
            found[0].prompt_logprobs.add(scored.prompt_logprobs)

    def _add_pooled(self, pooled: RequestPooled) -> None:
        found = self._live.get(pooled.key)
        state, pooler = None if found is None else found[0], self._pooler
        if state is not None and state.pooling is not None and pooler is not None:
            values = of_steps(pooled.values, state.prompt_token_ids, state.pooling, pooler)
            state.pooled = activated(values, state.pooling, pooler)

    def _advance(
        self,
        key: int,
        tokens: Sequence[int],
        logprobs: RowLogprobs | None,
        end: FinishedRequest | None,
        now: float,
        update: Update,
    ) -> None:
        found = self._live.get(key)
        if found is None:
            return
        state, completion = found
        if end is not None and end.reason == "error":
            message = end.message or "The engine could not continue this request."
            error = EngineStepError(message) if end.param is None else _refusal(message, end)
            if end.failure is not None:
                self.metrics.request_failures[end.failure] += 1
            failed = self.fail(key, error, now)
            update.changed += failed.changed
            update.abort += failed.abort
            return
        if tokens:
            self._time(state, completion, len(tokens), now)
            # The token that ended a completion is not part of its text, unless the request asks for it.
            stopped = end is not None and end.reason == "stop" and not end.complete
            completion.extend(tokens, logprobs, hide_last=stopped and not state.params.include_stop_str_in_output)
        if completion.finish_reason is not None and end is None:
            update.abort.append(key)
        if end is not None:
            completion.finish(end.reason, end.stop_token)
            state.kv_transfer_params = end.kv_transfer_params
        if completion.finish_reason is not None:
            self._forget(key, state, completion, now)
        update.changed.append(state)

    def _time(self, state: RequestState, completion: CompletionState, count: int, now: float) -> None:
        times = completion.times
        self.metrics.tokens(times, count, now, num_computed=_num_computed(state, completion))
        times.first_token = times.first_token or now
        times.last_token = now

    def _end(self, state: RequestState, reason: str, now: float) -> list[int]:
        """Ends the unfinished completions of a state. Returns their keys."""
        ended = []
        for request, completion in zip(state.requests, state.completions, strict=True):
            if request.key in self._live:
                completion.finish(reason, None)
                self._forget(request.key, state, completion, now)
                ended.append(request.key)
        return ended

    def _forget(self, key: int, state: RequestState, completion: CompletionState, now: float) -> None:
        del self._live[key]
        state.num_unfinished -= 1
        request, reason = state.requests[0], completion.finish_reason
        assert reason is not None
        self.metrics.finished(
            reason,
            completion.times,
            request.prompt.size,
            len(completion.token_ids),
            now,
            num_computed=_num_computed(state, completion),
            max_tokens=request.max_tokens,
            num_preemptions=completion.num_preemptions,
        )
        if state.finished:
            del self._by_id[state.request_id]
            self.metrics.all_finished(len(state.completions), max(len(one.token_ids) for one in state.completions))


def _refusal(message: str, end: FinishedRequest) -> RequestError:
    return RequestError(message, param=end.param or None, code=end.failure)


def _num_computed(state: RequestState, completion: CompletionState) -> int:
    """Prompt tokens that were computed for a completion, not found in a cache or at a sibling."""
    return state.requests[0].prompt.size - completion.num_cached_tokens


def _by_key(outputs: EngineCoreOutputs) -> Iterator[tuple[int, Sequence[int]]]:
    tokens: list[int] = outputs.tokens.tolist()
    start = 0
    for key, count in zip(outputs.keys.tolist(), outputs.counts.tolist(), strict=True):
        yield key, tokens[start : start + count]
        start += count
