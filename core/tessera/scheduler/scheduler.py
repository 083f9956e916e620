"""What runs in each step. A step knows only tokens still to compute; rows of requests are arrays, and a budget of
tokens is shared out among them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SchedulerConfig
from tessera.kvcache.manager import KVCacheManager
from tessera.platform.launch import Resource, StepRules
from tessera.platform.runner import CachePlan
from tessera.request import Request
from tessera.scheduler.admission import Admission
from tessera.scheduler.answers import StopRules
from tessera.scheduler.draft import Kind, ScheduledStep
from tessera.scheduler.grants import Grants
from tessera.scheduler.in_flight import InFlight, StepInFlight
from tessera.scheduler.known import PrefixPublisher
from tessera.scheduler.occupancy import RowAllocator
from tessera.scheduler.outputs import (
    EngineCoreOutputs,
    FinishedRequest,
    RequestLogprobs,
    RequestPromptLogprobs,
    SchedulerCounters,
)
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.requests import Requests
from tessera.scheduler.resources import ResourceList
from tessera.scheduler.rows import Rows, Status
from tessera.scheduler.shares import TokenBudget
from tessera.step import SchedulerOutput, StepOutput


class Scheduler:
    """Requests in, steps out, answers in, tokens out; up to `depth` steps are in flight.

    A row that decodes is scheduled again before its newest token is known here; that it ended is then seen one step
    late, and what came too much is dropped. Rows and blocks that a step in flight uses are given back when it retires.
    chunkable: the model's prompts may be cut anywhere.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        plan: CachePlan,
        *,
        policy: SchedulingPolicy,
        rules: StepRules,
        resources: Sequence[Resource],
        eos_token_ids: Sequence[int],
        prefix_caching: bool,
        max_model_len: int,
        depth: int,
        chunkable: bool = True,
    ) -> None:
        self.counters = SchedulerCounters()
        self._depth = depth
        self._mixes = rules.mix_prefill_decode
        self._num_groups = len(plan.groups)
        whole = not (config.chunked_prefill and chunkable)
        shares = self._shares = TokenBudget(config, rules, whole=whole, max_model_len=max_model_len)
        self._policy = policy
        self._resources = ResourceList(resources)
        self._stop_rules = StopRules(eos_token_ids)
        cache = self._cache = KVCacheManager(
            plan, prefix_caching=prefix_caching, ahead=depth * shares.max_tokens_per_request
        )
        rows = self._rows = Rows(plan.num_rows, max_model_len)
        known = self._known = PrefixPublisher(rows, cache)
        flying = self._in_flight = InFlight()
        occupancy = self._occupancy = RowAllocator(rows, cache, known, self._resources, flying, max_model_len)
        self._requests = Requests(config, rows, cache, occupancy, policy, self.counters, max_model_len)
        self._grants = Grants(self._requests, rows, cache, self._resources, shares, policy, flying)
        self._admission = Admission(
            self._requests,
            rows,
            cache,
            occupancy,
            self._resources,
            shares,
            policy,
            flying,
            self.counters,
            max_placed=min(config.max_num_seqs, rules.max_rows or config.max_num_seqs),
            watermark=config.watermark,
        )
        self._last_kind: Kind = "decode"

    # ---- what it is doing --------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return self._occupancy.num_placed

    @property
    def num_waiting(self) -> int:
        return len(self._requests.waiting)

    @property
    def in_flight(self) -> int:
        """Steps whose output has not come."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is in flight. After an abort take_finished() may still have something."""
        return bool(len(self._requests) or len(self._in_flight))

    @property
    def kv_usage(self) -> float:
        """Share of the cache's blocks that requests hold, 0 to 1."""
        return self._cache.usage

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Raises OverloadedError where too much waits already, RequestError for a request that could never run."""
        self._requests.add(request)

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests at any moment; keys that are not known (any more) are ignored."""
        self._requests.abort(keys)

    def take_finished(self) -> list[FinishedRequest]:
        """Requests that ended and were not told of yet; update() tells of them too."""
        return self._requests.take_finished()

    def reset_prefix_cache(self) -> None:
        """Forgets what blocks are known for; requests that run keep theirs."""
        if self._cache.prefix_cache is not None:
            self._cache.prefix_cache.clear()

    # ---- a step is decided -------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """The next step; None where nothing can run now, perhaps because of steps in flight. Where nothing ever will, a
        request ends with an error."""
        if len(self._in_flight) >= self._depth:
            return None
        preemptions = self.counters.preemptions
        self._admission.wake_followers()
        self._known.free_behind()
        self._admission.make_way()
        for kind in self._kinds():
            draft = ScheduledStep(kind, self._shares.budget, self._num_groups)
            self._resources.begin_step()
            self._fill(draft)
            if not draft.empty:
                return self._emit(draft)
        if len(self._requests) and not len(self._in_flight) and self.counters.preemptions == preemptions:
            self._end_one_that_is_stuck()
        return None

    def _fill(self, draft: ScheduledStep) -> None:
        """Those that run, then those that wait; in between, prompts that the next to start goes before."""
        work = draft.may_hold(self._rows.work())
        late = self._admission.overtaken(work)
        self._grants.give(draft, work if late is None else work.where(~late))
        if not draft.short:
            self._admission.start_waiting(draft)
        if late is not None:
            running = self._rows.status[work.rows] == Status.RUNNING
            self._grants.give(draft, work.where(late & running))

    def _end_one_that_is_stuck(self) -> None:
        """Nothing is in flight and nobody got anything, so nothing will ever change: a resource has no room for the
        first in order, not even alone."""
        running = self._rows.running
        if len(running):
            request = self._rows.request(int(running[0]))
            said = self._resources.reason(request, 1) or "the scheduler found nothing to do for it"
        else:
            request, said = self._admission.why_not()
        self._requests.end(request, "error", message=f"This request cannot go on: {said}.")

    def _kinds(self) -> tuple[Kind, ...]:
        """What the step may hold, the first choice first: where prompts and answers do not mix, they take turns."""
        if self._mixes:
            return ("mixed",)
        return ("decode", "prefill") if self._last_kind == "prefill" else ("prefill", "decode")

    def _emit(self, draft: ScheduledStep) -> SchedulerOutput:
        """The step as plain data, rows that decode first; from here on it is in flight."""
        number, (work, tokens) = self.counters.steps, draft.grants()
        rows, ends = work.rows, work.starts + tokens
        after = int(self._rows.sampled_step.take(rows).max())
        sampling = rows[tokens == work.left] if draft.num_prefills else rows
        self._rows.advance(rows, ends, sampling, number)
        blocks, copies = self._cache.take_changes()
        opened, freed = self._occupancy.take_changes()
        num_tokens = self._shares.budget - draft.room
        prompts = rows[work.left > 1] if draft.num_prefills else rows[:0]
        departures, now = self._rows.departures, time.monotonic()
        self._in_flight.add(StepInFlight(number, rows, ends, sampling, prompts, departures, copies, now, num_tokens))
        self.counters.steps += 1
        self._last_kind = draft.kind
        return SchedulerOutput(
            step=number,
            after=after,
            rows=int32(rows),
            starts=work.starts,
            num_scheduled_tokens=tokens,
            samples=int32(sampling),
            blocks=blocks,
            opened=opened,
            freed=int32(freed),
            copies=copies,
        )

    # ---- its answers are in ------------------------------------------------------------------------------------------

    def update(self, output: StepOutput) -> EngineCoreOutputs:
        """The oldest step in flight retires. Tokens of rows whose request ended in the meantime are dropped."""
        step, rows = self._in_flight.retire(output.step), self._rows
        self._policy.step_took(time.monotonic() - step.scheduled_at, step.num_tokens)
        rows.pending[step.sampling] -= 1
        for error in output.errors:
            if rows.goes_on(error.row):
                self._requests.end(rows.request(error.row), "error", message=error.message)
        prompt_logprobs = self._take_prompt_logprobs(output)
        drawn, tokens = self._take_tokens(step, output)
        keys = rows.key[drawn]
        logprobs = self._take_logprobs(output, drawn)
        self._retire(step)
        for ending in self._stop_rules.endings(rows, drawn, tokens):
            self._requests.end(ending.request, ending.reason, ending.stop_token)
        self._occupancy.retire(step)
        return EngineCoreOutputs(
            keys=keys,
            counts=np.ones(len(keys), dtype=np.int32),
            tokens=tokens,
            finished=self.take_finished(),
            logprobs=logprobs,
            started=self._admission.take_started(),
            prompt_logprobs=prompt_logprobs,
        )

    def _take_tokens(self, step: StepInFlight, output: StepOutput) -> tuple[Array, Array]:
        """Rows that go on and the token each of them drew."""
        rows, drawn, tokens = self._rows, output.rows.astype(np.intp), output.tokens
        assert output.counts.max(initial=0) <= 1, "nothing was drafted, so a row draws at most one token"
        if len(tokens) < len(drawn):
            drawn = drawn[output.counts == 1]
        if rows.departures != step.departures:
            going_on = rows.going_on(drawn)
            drawn, tokens = drawn[going_on], tokens[going_on]
        rows.append(drawn, tokens)
        self.counters.generation_tokens += len(drawn)
        return drawn, tokens

    def _take_logprobs(self, output: StepOutput, drawn: Array) -> list[RequestLogprobs]:
        if not output.logprobs:
            return []
        keys = dict(zip(drawn.tolist(), self._rows.key[drawn].tolist(), strict=True))
        return [RequestLogprobs(keys[of.row], of) for of in output.logprobs if of.row in keys]

    def _take_prompt_logprobs(self, output: StepOutput) -> list[RequestPromptLogprobs]:
        rows = self._rows
        return [
            RequestPromptLogprobs(int(rows.key[of.row]), of) for of in output.prompt_logprobs if rows.goes_on(of.row)
        ]

    def _retire(self, step: StepInFlight) -> None:
        """What the step computed is in the cache for sure."""
        rows, computed, ends, prompts = self._rows, step.rows, step.ends, step.prompts
        if rows.departures != step.departures:
            going_on = rows.going_on(computed)
            computed, ends, prompts = computed[going_on], ends[going_on], prompts[rows.going_on(prompts)]
        rows.num_retired[computed] = ends
        self._known.tell(prompts)

    def check_integrity(self) -> None:
        """Asserts that no row and no block is lost, held twice or, when nothing is to do, left over."""
        self._occupancy.check()
        if not self.has_work:
            self._rows.check_idle()
            assert self._cache.usage == 0.0, "blocks are held although nothing is to do"
