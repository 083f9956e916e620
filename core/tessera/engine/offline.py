"""The engine in the process of an LLM's user: runs steps until a list of prompts is complete, and stays usable after
Ctrl-C."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from tessera.engine.beam_search import BeamSearch, first_alternatives
from tessera.engine.completion import RequestState
from tessera.engine.engine import Engine
from tessera.engine.frontend import FrontEnd
from tessera.engine.input_processor import NO_SAMPLING, PooledPrompt, Prompt
from tessera.errors import EngineDeadError, EngineStepError, RequestError
from tessera.request import NO_ARGS, RequestOutput
from tessera.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tessera.scheduler.outputs import EngineCoreOutputs
    from tessera.text import Vocabulary

Done = Callable[[RequestOutput], None]


@dataclass(frozen=True)
class Job:
    """One prompt to run, and the request id of its output."""

    request_id: str
    prompt: Prompt | PooledPrompt
    params: SamplingParams
    priority: int
    feature_args: Mapping[str, str]


class OfflineEngine:
    """Runs lists of jobs to completion on an engine in this process."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary | None) -> None:
        self.config = engine.config
        self.max_model_len = engine.info.max_model_len
        self.front = FrontEnd(engine.config, vocabulary, max_model_len=self.max_model_len, shorten=True)
        self._engine = engine
        self._unusable: str | None = None
        self._closed = False
        self._one_call = threading.Lock()
        self._numbers = itertools.count()
        self._abort_asked = False

    def job(
        self,
        prompt: Prompt | PooledPrompt,
        params: SamplingParams = NO_SAMPLING,
        priority: int = 0,
        feature_args: Mapping[str, str] = NO_ARGS,
    ) -> Job:
        """Creates a job, to be passed to run() once. params: of a prompt to complete. May be called on any thread."""
        return Job(str(next(self._numbers)), prompt, params, priority, feature_args)

    def run(self, jobs: Sequence[Job], done: Done) -> list[RequestOutput]:
        """Returns the outputs in the order of the jobs. done: called with each output as soon as it is complete. Raises
        EngineStepError, EngineDeadError, KeyboardInterrupt, and RequestError for a request that could not go on."""
        with self._one_call:
            self.check_usable()
            self._engine.enter_thread()
            self._abort_asked = False
            with HeldInterrupt() as interrupt:
                try:
                    return self._run(jobs, interrupt, done)
                finally:
                    self._drain()

    def search(self, searches: Sequence[BeamSearch], done: Callable[[BeamSearch], None]) -> None:
        """Runs all searches to their end, in rounds that they share. done: called with each search as soon as it has
        ended. Raises the same errors as run()."""
        going = list(searches)
        while going:
            prompts = [(search, ids) for search in going for ids in search.pending_prompts()]
            jobs = [
                self.job(self.front.prepare(ids, search.sampling, media=search.media), search.sampling)
                for search, ids in prompts
            ]
            answers = iter(self.run(jobs, _unheard))
            for search in going:
                search.advance(
                    [first_alternatives(next(answers).outputs[0].logprobs) for _ in search.pending_prompts()]
                )
            for search in going:
                if not search.pending_prompts():
                    done(search)
            going = [search for search in going if search.pending_prompts()]

    def abort(self) -> None:
        """Call from another thread to end the running call within a step. Its unfinished completions get finish_reason
        "abort"."""
        self._abort_asked = True

    def check_usable(self) -> None:
        """Raises EngineDeadError after close(), or after an error that ended the engine."""
        if self._unusable is not None:
            raise EngineDeadError(self._unusable)

    def check_feature_args(self, args: Mapping[str, str]) -> None:
        """Raises RequestError if requests cannot have these Request.feature_args."""
        with self._one_call:
            self._engine.check_feature_args(args)

    def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache. Returns True. Raises EngineDeadError."""
        with self._one_call:
            self.check_usable()
            self._engine.reset_prefix_cache()
            return True

    def close(self) -> None:
        with self._one_call:
            self._unusable = "This LLM is closed."
            if not self._closed:
                self._closed = True
                self._engine.enter_thread()
                self._engine.close()

    def _run(self, jobs: Sequence[Job], interrupt: HeldInterrupt, done: Done) -> list[RequestOutput]:
        waiting = deque(jobs)
        outputs: dict[str, RequestOutput] = {}
        while len(outputs) < len(jobs):
            if self._abort_asked:
                outputs |= self._aborted([job for job in jobs if job.request_id not in outputs])
                break
            self._feed(waiting)
            for state in self._step():
                output = _taken(state, jobs)
                if output is not None:
                    _list_logprobs(output)
                    outputs[state.request_id] = output
                    done(output)
            interrupt.check()
        return [outputs[job.request_id] for job in jobs]

    def _aborted(self, jobs: Sequence[Job]) -> dict[str, RequestOutput]:
        """The partial outputs of jobs that have not ended; those of jobs that have not started are empty."""
        return {job.request_id: self._end(self.front.find(job.request_id) or self._submit(job)) for job in jobs}

    def _end(self, state: RequestState) -> RequestOutput:
        self._engine.abort(self.front.drop(state, time.monotonic()))
        output = state.take()
        assert output is not None, "a state that was dropped has an output"
        _list_logprobs(output)
        return output

    def _feed(self, waiting: deque[Job]) -> None:
        """Adds as many jobs as the next steps may start; more would only take memory."""
        scheduler = self.config.scheduler
        room = min(scheduler.max_num_seqs, scheduler.max_waiting) - self._engine.stats.num_waiting
        while waiting and room >= waiting[0].params.n:
            job = waiting.popleft()
            room -= job.params.n
            self._add(job)
        if waiting and not self._engine.has_work:
            self._add(waiting.popleft())

    def _add(self, job: Job) -> None:
        for request in self._submit(job).requests:
            self._engine.add(request)

    def _submit(self, job: Job) -> RequestState:
        if isinstance(job.prompt, PooledPrompt):
            return self.front.submit_pooled(
                job.prompt, job.request_id, arrival=time.monotonic(), priority=job.priority,
                feature_args=job.feature_args,
            )  # fmt: skip
        return self.front.submit(
            job.prompt, job.params, job.request_id, arrival=time.monotonic(), priority=job.priority,
            feature_args=job.feature_args,
        )  # fmt: skip

    def _step(self) -> list[RequestState]:
        outputs = self._engine_step()
        self.front.metrics.stats = self._engine.stats
        if outputs is None:
            return []
        update = self.front.update(outputs, time.monotonic())
        self._engine.abort(update.abort)
        return update.changed

    def _drain(self) -> None:
        """Ends what is still in the engine: requests left by an error or Ctrl-C, and steps in flight."""
        if self._unusable is None:
            self._engine.abort(self.front.drop_all(time.monotonic()))
            while self._engine.has_work:
                self._engine_step()
            self._engine.check_integrity()

    def _engine_step(self) -> EngineCoreOutputs | None:
        try:
            return self._engine.step()
        except Exception as error:
            self._unusable = "This LLM failed in an earlier step; make a new one."
            if isinstance(error, EngineStepError):
                raise  # its message says what happened
            raise EngineStepError(f"An engine step failed ({type(error).__name__}); the log above says why.") from error
        except BaseException:
            self._unusable = "This LLM was interrupted within a step; make a new one."
            raise


def _taken(state: RequestState, jobs: Sequence[Job]) -> RequestOutput | None:
    """Raises the error that ended the request; one of its own names the prompt."""
    try:
        return state.take()
    except RequestError as error:
        index = next(index for index, job in enumerate(jobs) if job.request_id == state.request_id)
        raise RequestError(f"prompts[{index}]: {error.message}", param=error.param, code=error.code) from None


def _unheard(output: RequestOutput) -> None:
    """Ignores an output."""


class HeldInterrupt:
    """Delays Ctrl-C to the end of a step, because an interrupt within one would leave the engine in an inconsistent
    state. A second Ctrl-C takes effect at once."""

    def __init__(self) -> None:
        self._came = False
        self._installed = False

    def __enter__(self) -> Self:
        # Only the main thread can handle signals, and a handler that the user installed is left alone.
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hold)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True


def _list_logprobs(output: RequestOutput) -> None:
    if output.prompt_logprobs is not None:
        output.prompt_logprobs = list(output.prompt_logprobs)
    for answer in output.outputs:
        if answer.logprobs is not None:
            answer.logprobs = list(answer.logprobs)
