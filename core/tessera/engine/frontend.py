"""The front end that LLM and AsyncEngine share: prompts in, the engine's tokens out as answers. It does no input or
output of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessera.engine.completion import Completion, PromptLogprobsBuffer, RequestState
from tessera.engine.input_processor import InputProcessor, Prompt
from tessera.engine.metrics import EngineMetrics
from tessera.errors import EngineStepError, OverloadedError, RequestError, TesseraError
from tessera.request import Request, RequestMetrics
from tessera.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.scheduler.outputs import EngineCoreOutputs, FinishedRequest, RequestPromptLogprobs, StartedRequest
    from tessera.step import RowLogprobs
    from tessera.text import Vocabulary


@dataclass
class Update:
    """What a step changed: the states that have something to take, and the keys whose requests the engine must end (a
    stop string was found)."""

    changed: list[RequestState] = field(default_factory=list)
    abort: list[int] = field(default_factory=list)


class FrontEnd:
    """The requests of one engine. submit() makes them, update() takes in what a step brought, drop() forgets them."""

    def __init__(
        self, config: EngineConfig, vocabulary: Vocabulary | None, *, max_model_len: int, shorten: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self.metrics = EngineMetrics(max_model_len)
        self._input = InputProcessor(config, vocabulary, max_model_len, shorten=shorten)
        self._most = config.scheduler.max_num_seqs + config.scheduler.max_waiting
        self._live: dict[int, tuple[RequestState, Completion]] = {}
        self._by_id: dict[str, RequestState] = {}

    @property
    def num_unfinished(self) -> int:
        """Answers that still grow."""
        return len(self._live)

    def prepare(self, ids: Sequence[int], params: SamplingParams, *, text: str | None = None) -> Prompt:
        """A prompt with every limit checked. text: what the ids were made of, if they were. params: without bad_words;
        see with_bad_words(). Raises RequestError. Changes nothing, so it may run on another thread."""
        return self._input.prepare(ids, params, text=text)

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
    ) -> RequestState:
        """A new state whose `requests` are for the engine. params: those the prompt was prepared with. arrival: seconds
        of time.monotonic(). Raises RequestError, OverloadedError."""
        if request_id in self._by_id:
            raise RequestError(f"A request with the id '{request_id}' is already running.", param="request_id")
        if len(self._live) + params.n > self._most:
            raise OverloadedError(f"{len(self._live)} requests are already running or waiting; try again later.")
        requests = self._input.requests(
            prompt, request_id, arrival=arrival, priority=priority, cache_salt=cache_salt, tenant=tenant
        )
        ids = prompt.ids.tolist()
        completions = [self._completion(index, params, ids, arrival) for index in range(params.n)]
        scores = None if params.prompt_logprobs is None else PromptLogprobsBuffer(len(ids), self.vocabulary)
        state = RequestState(request_id, params, prompt.text, ids, requests, completions, scores)
        self._by_id[request_id] = state
        for request, completion in zip(requests, completions, strict=True):
            self._live[request.key] = (state, completion)
        return state

    def update(self, outputs: EngineCoreOutputs, now: float) -> Update:
        """Takes in one step's tokens, seen at `now`. What belongs to answers that have ended is ignored: it was on its
        way when they did."""
        update = Update()
        for started in outputs.started:
            self._start(started)
        for of in outputs.prompt_logprobs:
            self._score(of)
        finished = {end.key: end for end in outputs.finished}
        logprobs = {row.key: row.logprobs for row in outputs.logprobs}
        for key, tokens in _by_key(outputs):
            self._advance(key, tokens, logprobs.get(key), finished.pop(key, None), now, update)
        for key, end in finished.items():
            self._advance(key, (), None, end, now, update)
        return update

    def fail(self, key: int, error: TesseraError, now: float) -> Update:
        """The engine did not take a request, or could not go on with it: all its answers end."""
        found = self._live.get(key)
        if found is None:
            return Update()
        state = found[0]
        state.error = error
        return Update([state], [other for other in self._end(state, "error", now) if other != key])

    def drop(self, state: RequestState, now: float) -> list[int]:
        """It ends, with finish_reason "abort", unless it has ended: the keys that the engine must abort."""
        return self._end(state, "abort", now)

    def drop_all(self, now: float) -> list[int]:
        """Everything that has not ended ends: the keys that the engine must abort."""
        return [key for state in list(self._by_id.values()) for key in self.drop(state, now)]

    def find(self, request_id: str) -> RequestState | None:
        return self._by_id.get(request_id)

    def fail_all(self, error: Callable[[], TesseraError], now: float) -> list[RequestState]:
        """The engine is gone: every request ends with an error of its own."""
        states = list(self._by_id.values())
        for state in states:
            state.error = error()
            self._end(state, "error", now)
        return states

    def lose(self, error: Callable[[], TesseraError], now: float) -> list[RequestState]:
        """The engine is gone and another may come. What a reader has had some of ends, with an error of its own: these
        states. The rest starts over; see replay()."""
        given = [state for state in self._by_id.values() if state.given]
        for state in given:
            state.error = error()
            self._end(state, "error", now)
        for key, (state, completion) in self._live.items():
            fresh = self._completion(completion.index, state.params, state.prompt_token_ids, completion.times.arrival)
            state.completions[completion.index] = fresh
            self._live[key] = (state, fresh)
        return given

    def replay(self) -> list[RequestState]:
        """What has not ended, for another engine."""
        return list(self._by_id.values())

    def unfinished(self, state: RequestState) -> list[Request]:
        """The requests of a state's answers that still grow."""
        return [request for request in state.requests if request.key in self._live]

    def _completion(self, index: int, params: SamplingParams, prompt: list[int], arrival: float) -> Completion:
        return Completion(index, params, self.vocabulary, prompt, arrival)

    def _start(self, started: StartedRequest) -> None:
        found = self._live.get(started.key)
        if found is None or found[1].times.first_scheduled:
            return
        state, completion = found
        if completion.index == 0:
            state.num_cached_tokens = started.num_cached_tokens
        completion.times.first_scheduled = started.scheduled_at
        self.metrics.scheduled(completion.times)

    def _score(self, of: RequestPromptLogprobs) -> None:
        found = self._live.get(of.key)
        if found is not None and found[0].prompt_logprobs is not None:
            found[0].prompt_logprobs.add(of.prompt_logprobs)

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
            said = end.message or "The engine could not go on with this request."
            error = EngineStepError(said) if end.param is None else RequestError(said, param=end.param or None)
            failed = self.fail(key, error, now)
            update.changed += failed.changed
            update.abort += failed.abort
            return
        if tokens:
            self._time(completion.times, len(tokens), now)
            # A token that ended the answer is no part of its text, unless that was asked for.
            stopped = end is not None and end.reason == "stop" and not end.complete
            completion.extend(tokens, logprobs, hide_last=stopped and not state.params.include_stop_str_in_output)
        if completion.finish_reason is not None and end is None:
            update.abort.append(key)
        if end is not None:
            completion.finish(end.reason, end.stop_token)
        if completion.finish_reason is not None:
            self._forget(key, state, completion, now)
        update.changed.append(state)

    def _time(self, times: RequestMetrics, count: int, now: float) -> None:
        self.metrics.tokens(times, count, now)
        times.first_token = times.first_token or now
        times.last_token = now

    def _end(self, state: RequestState, reason: str, now: float) -> list[int]:
        """Ends what has not ended yet of a state; the keys of that."""
        ended = []
        for request, completion in zip(state.requests, state.completions, strict=True):
            if request.key in self._live:
                completion.finish(reason, None)
                self._forget(request.key, state, completion, now)
                ended.append(request.key)
        return ended

    def _forget(self, key: int, state: RequestState, completion: Completion, now: float) -> None:
        del self._live[key]
        state.num_unfinished -= 1
        if state.finished:
            del self._by_id[state.request_id]
        num_prompt_tokens = state.requests[0].prompt.size
        reason = completion.finish_reason
        assert reason is not None
        self.metrics.finished(reason, completion.times, num_prompt_tokens, len(completion.token_ids), now)


def _by_key(outputs: EngineCoreOutputs) -> Iterator[tuple[int, Sequence[int]]]:
    tokens: list[int] = outputs.tokens.tolist()
    start = 0
    for key, count in zip(outputs.keys.tolist(), outputs.counts.tolist(), strict=True):
        yield key, tokens[start : start + count]
        start += count
