"""What runs in each step. A step knows only tokens still to compute; rows of requests are arrays, and a budget of
tokens is shared out among them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SchedulerConfig
from tessera.errors import OverloadedError, RequestError
from tessera.kvcache.manager import KVCacheManager
from tessera.platform.launch import Resource, StepRules
from tessera.platform.runner import CachePlan
from tessera.request import Request
from tessera.scheduler.admission import Admission
from tessera.scheduler.answers import StopRules
from tessera.scheduler.draft import Kind, StepDraft
from tessera.scheduler.in_flight import InFlight, StepInFlight
from tessera.scheduler.occupancy import Occupancy
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.progress import (
    Finished,
    FinishReason,
    KeyLogprobs,
    KeyScored,
    Progressed,
    SchedulerCounters,
)
from tessera.scheduler.resources import ResourceList
from tessera.scheduler.rows import Rows, Status, Work
from tessera.scheduler.shares import TokenShares
from tessera.scheduler.tracked import NO_ROW, TrackedRequest
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
        self._max_waiting = config.max_waiting
        self._max_model_len = max_model_len
        self._depth = depth
        self._mixes = rules.mix_prefill_decode
        self._num_groups = len(plan.groups)
        whole = not (config.chunked_prefill and chunkable)
        self._shares = TokenShares(config, rules, whole=whole, max_model_len=max_model_len)
        self._policy = policy
        self._resources = ResourceList(resources)
        self._stop_rules = StopRules(eos_token_ids)
        self._cache = KVCacheManager(plan, prefix_caching=prefix_caching)
        self._rows = Rows(plan.num_rows, max_model_len)
        self._in_flight = InFlight()
        self._occupancy = Occupancy(self._rows, self._cache, self._resources, self._in_flight, max_model_len)
        self._requests: dict[int, TrackedRequest] = {}
        self._admission = Admission(
            self._requests,
            self._rows,
            self._cache,
            self._occupancy,
            self._resources,
            self._shares,
            policy,
            self.counters,
            max_placed=min(config.max_num_seqs, rules.max_rows or config.max_num_seqs),
        )
        self._waiting = self._admission.waiting
        self._arrivals = 0
        self._last_kind: Kind = "decode"
        self._finished: list[Finished] = []

    # ---- what it is doing --------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return self._occupancy.num_placed

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Steps whose output has not come."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is in flight. After an abort take_finished() may still have something."""
        return bool(self._requests or len(self._in_flight))

    @property
    def kv_usage(self) -> float:
        """Share of the cache's blocks that requests hold, 0 to 1."""
        return self._cache.usage

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Raises OverloadedError where too many wait already, RequestError for a request that could never run."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(f"{self._max_waiting} requests are waiting already; try again later.")
        self._check_fits(request)
        cache = self._cache.prefix_cache
        chain = None if cache is None else cache.chain(request.salt, request.adapter)
        tracked = TrackedRequest(request, self._arrivals, chain, self._rows)
        self._arrivals += 1
        self._requests[request.key] = tracked
        self._waiting.add(tracked)

    def _check_fits(self, request: Request) -> None:
        num_prompt, most = len(request.prompt), self._max_model_len
        if not 0 < num_prompt < most:
            raise RequestError(f"The prompt must have 1 to {most - 1} tokens, got {num_prompt}.", param="prompt")
        total = min(num_prompt + request.max_tokens, most)
        fits = self._cache.max_tokens + 1  # the last token is never fed back
        if total > fits:
            raise RequestError(
                f"The prompt's {num_prompt} tokens and an answer of up to {total - num_prompt} are {total} tokens, "
                f"but the KV cache has room for requests of {fits}; shorten the prompt or lower max_tokens.",
                param="max_tokens" if num_prompt < fits else "prompt",
            )

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests at any moment; keys that are not known (any more) are ignored."""
        for key in keys:
            if key in self._requests:
                self._end(self._requests[key], "abort")

    def take_finished(self) -> list[Finished]:
        """Requests that ended and were not told of yet; update() tells of them too."""
        finished, self._finished = self._finished, []
        return finished

    def _end(
        self, request: TrackedRequest, reason: FinishReason, stop_token: int | None = None, message: str | None = None
    ) -> None:
        del self._requests[request.key]
        self._finished.append(Finished(request.key, reason, stop_token, message))
        status = None if request.row == NO_ROW else self._rows.status[request.row]
        if status is None:
            self._waiting.remove(request)
        elif status == Status.PREEMPTED:
            self._waiting.remove(request)
            self._rows.set_status(request.row, Status.ENDED)
        else:
            if status == Status.RESERVED:
                self._admission.forget_follower(request)
            self._occupancy.leave(request, Status.ENDED)

    # ---- a step is decided -------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """The next step; None where nothing can run now, perhaps because of steps in flight."""
        if len(self._in_flight) >= self._depth:
            return None
        self._admission.wake_followers()
        for kind in self._kinds():
            draft = StepDraft(kind, self._shares.budget, self._num_groups)
            self._resources.begin_step()
            self._grant_running(draft)
            if not draft.short:
                self._admission.start_waiting(draft)
            if not draft.empty:
                return self._emit(draft)
        return None

    def _kinds(self) -> tuple[Kind, ...]:
        """What the step may hold, the first choice first: where prompts and answers do not mix, they take turns."""
        if self._mixes:
            return ("mixed",)
        return ("decode", "prefill") if self._last_kind == "prefill" else ("prefill", "decode")

    def _grant_running(self, draft: StepDraft) -> None:
        """Tokens for the rows that run. Where there are blocks for all, which is nearly always, that is a few
        operations on arrays."""
        work = self._rows.work()
        work = work.where(draft.holds(work.left))
        tokens = self._shares.share(work)
        work, tokens = work.where(tokens > 0), tokens[tokens > 0]
        if self._resources.every_grant:
            self._grant_one_by_one(draft, work, tokens)
            return
        demand = self._cache.demand(work.rows, work.starts, work.starts + tokens)
        if demand is None or self._cache.has(demand.blocks):
            if demand is not None:
                self._cache.allocate_slots(demand)
            draft.grant(work, tokens)
            return
        needy = self._cache.wanting(work.rows, work.starts + tokens)
        self._grant_one_by_one(draft, work.where(needy), tokens[needy])
        kept = ~needy & (self._rows.status[work.rows] == Status.RUNNING)
        draft.grant(work.where(kept), tokens[kept])

    def _grant_one_by_one(self, draft: StepDraft, work: Work, tokens: Array) -> None:
        """In order of arrival: each asks the resources, and takes blocks from others where it must."""
        for place, wanted in enumerate(tokens.tolist()):
            row, start, left = work.at(place)
            if self._rows.status[row] != Status.RUNNING:
                continue  # an older one took its blocks
            request = self._rows.request(row)
            count = self._resources.room(request, wanted)
            if count < wanted:
                count = self._shares.chunk(start, left, count)
            if count and self._secure(draft, request, start, start + count):
                self._resources.take(request, count)
                draft.grant(work.one(place), int32([count]))

    def _secure(self, draft: StepDraft, request: TrackedRequest, start: int, end: int) -> bool:
        """Blocks for a running request, preempting others until there are enough. False where it sits out this step:
        what it needs comes back with steps in flight (blocks, or a shared one for itself), or it was the victim."""
        row, cache = int32([request.row]), self._cache
        while (demand := cache.demand(row, int32([start]), int32([end]))) is not None:
            if cache.has(demand.blocks, beside=draft.promised):
                cache.allocate_slots(demand)
                return True
            draft.short = True
            if cache.has(demand.blocks, beside=draft.promised - cache.num_returning):
                draft.promised += demand.blocks
                return False
            running = self._rows.running
            open_to = running[~np.isin(running, draft.rows)].tolist()
            victim = self._policy.victim([self._rows.request(other) for other in open_to])
            if victim.key == request.key and self._in_flight.closing:
                return False
            self._preempt(self._requests[victim.key])
            if victim.key == request.key:
                return False
        return True

    def _preempt(self, request: TrackedRequest) -> None:
        """Its tokens, the ones in flight included, are kept and computed again later."""
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += request.num_computed_tokens
        self._occupancy.leave(request, Status.PREEMPTED)
        self._waiting.add(request)

    def _emit(self, draft: StepDraft) -> SchedulerOutput:
        """The step as plain data, rows that decode first; from here on it is in flight."""
        number, (rows, starts, tokens) = self.counters.steps, draft.grants()
        after = int(self._rows.sampled_step[rows].max())
        samples = self._rows.advance(rows, starts + tokens, number)
        decodes = samples & (tokens == 1)
        if not decodes.all():
            order = np.argsort(~decodes, kind="stable")
            rows, starts, tokens, samples = rows[order], starts[order], tokens[order], samples[order]
        blocks, copies = self._cache.take_changes()
        opened, freed = self._occupancy.take_changes()
        sampling = rows[samples]
        self._in_flight.add(
            StepInFlight(number, rows, starts + tokens, sampling, copies, time.monotonic(), int(tokens.sum()))
        )
        self.counters.steps += 1
        self._last_kind = draft.kind
        return SchedulerOutput(
            step=number,
            after=after,
            rows=rows,
            starts=starts,
            num_tokens=tokens,
            samples=sampling,
            blocks=blocks,
            opened=opened,
            freed=int32(freed),
            copies=copies,
        )

    # ---- its answers are in ------------------------------------------------------------------------------------------

    def update(self, output: StepOutput) -> Progressed:
        """The oldest step in flight retires. Tokens of rows whose request ended in the meantime are dropped."""
        step, rows = self._in_flight.retire(output.step), self._rows
        self._policy.step_took(time.monotonic() - step.scheduled_at, step.num_tokens)
        rows.pending[step.sampling] -= 1
        for error in output.errors:
            if rows.going_on(int32([error.row]))[0]:
                self._end(rows.request(error.row), "error", message=error.message)
        scored = self._take_scored(output)
        drawn, tokens = self._take_tokens(output)
        keys = rows.key[drawn]
        logprobs = self._take_logprobs(output, drawn)
        self._cache_filled(step)
        for ending in self._stop_rules.endings(rows, drawn, tokens):
            self._end(ending.request, ending.reason, ending.stop_token)
        self._occupancy.retire(step)
        return Progressed(
            keys=keys,
            counts=np.ones(len(keys), dtype=np.int32),
            tokens=tokens,
            finished=self.take_finished(),
            logprobs=logprobs,
            started=self._admission.take_started(),
            scored=scored,
        )

    def _take_tokens(self, output: StepOutput) -> tuple[Array, Array]:
        """Rows that go on and the token each of them drew."""
        rows, drawn, tokens = self._rows, output.rows, output.tokens
        assert output.counts.max(initial=0) <= 1, "nothing was drafted, so a row draws at most one token"
        drawn = drawn[output.counts == 1]
        going_on = rows.going_on(drawn)
        if not going_on.all():
            drawn, tokens = drawn[going_on], tokens[going_on]
        rows.append(drawn, tokens)
        self.counters.generation_tokens += len(drawn)
        return drawn, tokens

    def _take_logprobs(self, output: StepOutput, drawn: Array) -> list[KeyLogprobs]:
        if not output.logprobs:
            return []
        keys = dict(zip(drawn.tolist(), self._rows.key[drawn].tolist(), strict=True))
        return [KeyLogprobs(keys[of.row], of) for of in output.logprobs if of.row in keys]

    def _take_scored(self, output: StepOutput) -> list[KeyScored]:
        rows = self._rows
        return [KeyScored(int(rows.key[of.row]), of) for of in output.scored if rows.going_on(int32([of.row]))[0]]

    def _cache_filled(self, step: StepInFlight) -> None:
        """What the step computed is in the cache for sure; units that are full now are known to others from here on."""
        rows = self._rows
        going_on = rows.going_on(step.rows)
        computed, ends = (step.rows, step.ends) if going_on.all() else (step.rows[going_on], step.ends[going_on])
        rows.num_retired[computed] = ends
        prefix_cache = self._cache.prefix_cache
        if prefix_cache is None:
            return
        known, unit = rows.num_cached[computed], prefix_cache.unit
        full = ends - known >= unit
        filled, first, last = computed[full], known[full] // unit, ends[full] // unit
        rows.num_cached[filled] = last * unit
        for row, begin, end in zip(filled.tolist(), first.tolist(), last.tolist(), strict=True):
            chain = rows.request(row).chain
            assert chain is not None
            self._cache.cache_blocks(row, chain, rows.tokens[row], begin, end)

    def check_integrity(self) -> None:
        """Asserts that no row and no block is lost, held twice or, when nothing is to do, left over."""
        self._occupancy.check()
        if not self.has_work:
            self._rows.check_idle()
            assert self._cache.usage == 0.0, "blocks are held although nothing is to do"
