"""Decides what runs in each step: divides a token budget among the rows of requests that have tokens left to compute.
Prefill and decode differ only in how many tokens are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SchedulerConfig
from tessera.kvcache.manager import KVCacheManager, MakePrefixCache
from tessera.kvcache.prefix_cache import PrefixCache
from tessera.platform.feature import Failure
from tessera.platform.launch import Resource, StepRules
from tessera.platform.runner import CachePlan
from tessera.request import Request
from tessera.scheduler.admission import Admission
from tessera.scheduler.budget import Kind, Resources, ScheduledStep, TokenBudget
from tessera.scheduler.features import EngineFeatures
from tessera.scheduler.outputs import (
    EngineCoreOutputs,
    FinishedRequest,
    RequestLogprobs,
    RequestPooled,
    RequestPromptLogprobs,
    SchedulerCounters,
)
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.pooled_share import PooledShare
from tessera.scheduler.predicted_drafts import make_speculation
from tessera.scheduler.requests import Requests, RowAllocator, StepInFlight
from tessera.scheduler.restrictions import FIRST
from tessera.scheduler.rows import NO_STEP, Ending, Rows, RowStatus, StopRules, TrackedRequest, Work
from tessera.scheduler.speculation import Speculation
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, TokenMasks

NOTHING_ALLOWED = Failure("nothing_allowed", "This request cannot go on: its fields together allow no token.")


class Scheduler:
    """Takes requests, schedules steps and processes their outputs; up to `depth` steps are in flight.

    With depth > 1, a row is scheduled again before its newest token has arrived here. If that token ends the request,
    the steps scheduled in the meantime compute it needlessly, and their tokens for it are dropped. A row whose drafts
    are being verified is not: its next position depends on how many are accepted. Rows and blocks that a step in flight
    uses are freed when it retires.

    Decoding rows are divided into as many parts as there are turns, which are scheduled one after the other, so that
    consecutive steps do not depend on each other's tokens and can run on different pipeline stages at the same time.
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
        turns: int = 1,
        pools_beside: bool = False,
        features: EngineFeatures | None = None,
        make_prefix_cache: MakePrefixCache = PrefixCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """chunkable: the model's prompts may be split into chunks. pools_beside: requests may pool while others
        sample. features: the engine's halves of those that are enabled. clock: in seconds; a simulation has its
        own."""
        self.counters = SchedulerCounters()
        self._depth, self._max_model_len, self._clock = depth, max_model_len, clock
        # On the clock: when the last step was processed.
        self._retired_at = 0.0
        self._turns, self._turn = turns, 0
        self._mixes = rules.mix_prefill_decode
        self._last_kind: Kind = "decode"
        self._num_groups = len(plan.groups)
        self._policy = policy
        self._stop_rules = StopRules(eos_token_ids)
        whole = not (config.chunked_prefill and chunkable)
        budget = self._budget = TokenBudget(config, rules, whole=whole, max_model_len=max_model_len)
        ahead = depth * budget.max_per_request
        cache = self._cache = KVCacheManager(
            plan, prefix_caching=prefix_caching, ahead=ahead, make_prefix_cache=make_prefix_cache
        )
        if cache.snapshots is not None:
            budget.split_at(cache.snapshots.unit)
        self._rows = Rows(plan.num_rows, max_model_len)
        # None where requests only sample, or only pool.
        self._pooled = PooledShare(self._rows, budget) if pools_beside else None
        resources = [*resources, *([] if self._pooled is None else [self._pooled])]
        allocator = self._allocator = RowAllocator(self._rows, cache, Resources(resources), max_model_len)
        self._features = features or EngineFeatures()
        self._requests = Requests(
            config, allocator, policy, self.counters, self._features, eos_token_ids, splits=chunkable
        )
        # None if the configuration asks for no drafts.
        self.speculation: Speculation | None = None
        if config.speculative is not None:
            most = min(config.speculative.num_speculative_tokens, budget.max_per_request - 1)
            self.speculation = make_speculation(config.speculative, self._rows, most, clock)
        self._admission = Admission(
            self._requests,
            allocator,
            budget,
            policy,
            self.counters,
            max_running=min(config.max_num_seqs, rules.max_rows or config.max_num_seqs),
            watermark=config.watermark,
            clock=clock,
            pooled=self._pooled,
        )

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return self._allocator.num_placed

    @property
    def num_waiting(self) -> int:
        return self._requests.num_waiting

    @property
    def num_deferred(self) -> int:
        """Of the waiting requests, those that a feature does not let start yet."""
        return len(self._requests.preparing)

    @property
    def only_prepares(self) -> bool:
        """Whether all there is are requests that a feature does not let start yet."""
        preparing = len(self._requests.preparing)
        return bool(preparing) and preparing == len(self._requests) and not self._allocator.in_flight

    @property
    def cache(self) -> KVCacheManager:
        """The blocks of all requests."""
        return self._cache

    @property
    def in_flight(self) -> int:
        """Number of steps whose output has not arrived."""
        return len(self._allocator.in_flight)

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or a step is in flight. After an abort, take_finished() may have requests to
        report even if this is False."""
        return bool(len(self._requests) or self._allocator.in_flight)

    @property
    def kv_usage(self) -> float:
        """Fraction of the KV cache's blocks that requests hold, 0 to 1."""
        return self._cache.usage

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queues a request. Raises QueueFullError if the waiting queue is full, RequestError if the request can never
        run."""
        self._requests.add(request, self._max_model_len)

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests, whether they wait or run; unknown keys are ignored."""
        self._requests.abort(keys)

    def take_finished(self) -> list[FinishedRequest]:
        """The requests that ended and were not reported yet. update() reports them too."""
        return self._requests.take_finished()

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; running requests keep their blocks."""
        if self._cache.prefix_cache is not None:
            self._cache.prefix_cache.clear()

    # ---- scheduling --------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """The next step; None if nothing can run now, for example because `depth` steps are in flight. If nothing could
        ever run, one request is ended with an error."""
        if len(self._allocator.in_flight) >= self._depth:
            return None
        preemptions = self.counters.preemptions
        if self._requests.preparing:
            self._requests.prepare()
        self._admission.wake_followers()
        self._allocator.free_behind_windows()
        self._admission.make_way()
        for kind in self._kinds():
            step = ScheduledStep(kind, self._budget.total, self._num_groups)
            self._allocator.resources.begin_step()
            self._fill(step)
            if step.computes or step.prepares:
                return self._emit(step)
        may_go_on = len(self._requests) > len(self._requests.preparing)
        is_stuck = may_go_on and not self._allocator.in_flight and self.counters.preemptions == preemptions
        if is_stuck and not self._features.make_room():
            self._end_one_that_is_stuck()
        return None

    def _kinds(self) -> tuple[Kind, ...]:
        """The kinds of step to try, in this order. If prefill and decode may not be mixed, they take turns."""
        if self._mixes:
            return ("mixed",)
        return ("decode", "prefill") if self._last_kind == "prefill" else ("prefill", "decode")

    def _fill(self, step: ScheduledStep) -> None:
        """Schedules running requests, then waiting ones. Partly computed prompts that the next waiting request may
        overtake come last."""
        work = self._whose_turn(step.allowed(self._rows.work()))
        if self.speculation is not None:
            work = self.speculation.ready(work)
        late = self._late(work)
        self._schedule_running(step, work if late is None else work.where(~late))
        if not step.blocks_short:
            self._admission.start_waiting(step)
        if late is not None:
            running = self._rows.status[work.rows] == RowStatus.RUNNING
            self._schedule_running(step, work.where(late & running))

    def _late(self, work: Work) -> Array | None:
        """A mask of the rows that are scheduled behind waiting requests; None if there are none."""
        pooled = None if self._pooled is None else self._pooled.behind(work)
        overtaken = self._admission.overtaken(work)
        return overtaken if pooled is None else pooled if overtaken is None else pooled | overtaken

    def _whose_turn(self, work: Work) -> Work:
        """All prompts, and the next part of the decoding rows that is not empty."""
        if self._turns == 1:
            return work
        parts, decodes = work.rows % self._turns, work.num_remaining == 1
        for turn in range(self._turn, self._turn + self._turns):
            mine = decodes & (parts == turn % self._turns)
            if mine.any():
                self._turn = turn + 1
                return work.where(mine | ~decodes)
        return work

    def _schedule_running(self, step: ScheduledStep, work: Work) -> None:
        """Assigns tokens and blocks to running rows: with a few array operations where there are enough blocks for all
        and no resource must be asked, which is nearly always the case, and otherwise row by row."""
        tokens = self._budget.share(work, step)
        if tokens is not work.num_remaining:
            work, tokens = work.where(tokens > 0), tokens[tokens > 0]
        resources = self._allocator.resources
        if resources.asked_each_step:
            self._schedule_each(step, work, tokens)
        elif resources.asked_by_prompts:
            prompts = work.starts < self._rows.num_prompt_tokens[work.rows]
            self._schedule_together(step, work.where(~prompts), tokens[~prompts])
            self._schedule_each(step, work.where(prompts), tokens[prompts])
        else:
            self._schedule_together(step, work, tokens)

    def _schedule_together(self, step: ScheduledStep, work: Work, tokens: Array) -> None:
        """Schedules rows of which no resource need be asked."""
        if self._cache.try_allocate(work.rows, work.starts, work.starts + tokens) is None:
            step.add(work, tokens)
            return
        needy = self._cache.needy(work.rows, work.starts + tokens)
        self._schedule_each(step, work.where(needy), tokens[needy])
        kept = ~needy & (self._rows.status[work.rows] == RowStatus.RUNNING)
        step.add(work.where(kept), tokens[kept])

    def _schedule_each(self, step: ScheduledStep, work: Work, tokens: Array) -> None:
        """Schedules rows one by one: checks the resources for each, and preempts other requests if blocks are short."""
        resources = self._allocator.resources
        for place, wanted in enumerate(tokens.tolist()):
            row, start, left = work.at(place)
            if self._rows.status[row] != RowStatus.RUNNING:
                continue  # preempted for an earlier row
            request = self._rows.request(row)
            count = resources.room(request, wanted)
            if count < wanted:
                count = self._budget.chunk(start, left, count)
            if not count:
                step.prepares |= resources.prepare(request)
            elif self._allocate(step, request, start, start + count):
                resources.take(request, count)
                step.add(work.single(place), int32([count]))

    def _allocate(self, step: ScheduledStep, request: TrackedRequest, start: int, end: int) -> bool:
        """Allocates blocks for a running request, preempting others until there are enough. Returns False if it cannot
        run in this step: it waits for blocks that steps in flight will free, or was preempted itself."""
        row, cache = int32([request.row]), self._cache
        while (short := cache.try_allocate(row, int32([start]), int32([end]), step.promised)) is not None:
            step.blocks_short = True
            if cache.has(short, step.promised - cache.num_returning):
                step.promised += short
                return False
            running = self._rows.running
            candidates = running[~np.isin(running, step.rows)].tolist()
            victim = self._policy.victim([self._rows.request(other) for other in candidates])
            if victim.key == request.key and self._allocator.closing:
                return False
            self._requests.preempt(self._requests[victim.key])
            if victim.key == request.key:
                return False
        return True

    def _draft(self, speculation: Speculation, step: ScheduledStep, work: Work, tokens: Array) -> tuple[Array, Array]:
        """The tokens of each row with its drafts, and the drafts. Drafts get the blocks that are left over: a row has
        as many as fit into its own blocks where there are too few, and nobody is preempted for them."""
        room = 0 if step.num_prefills or step.blocks_short else step.room
        drafts = speculation.draft(work, room) if room else []
        if not drafts:
            return tokens, int32()
        counts, ends = int32([len(one) for one in drafts]), work.starts + tokens
        if self._allocator.resources.asked_each_step:
            requests = [self._rows.request(row) for row in work.rows.tolist()]
            counts = self._allocator.resources.take_drafts(requests, counts)
        if self._cache.try_allocate(work.rows, work.starts, ends + counts, len(self._rows.running)) is not None:
            counts = np.minimum(counts, np.maximum(self._cache.covered[work.rows] - ends, 0))
        drafts = [one[:count] for one, count in zip(drafts, counts.tolist(), strict=True)]
        step.room -= int(counts.sum())
        self.counters.drafts += int(np.count_nonzero(counts))
        self.counters.draft_tokens += int(counts.sum())
        return tokens + counts, np.concatenate(drafts).astype(np.int32)

    def _make_room_ahead(self, speculation: Speculation, work: Work, ends: Array) -> int:
        """How many drafts the step makes on the device of what follows. A layer that makes them writes keys and values
        of all but the last into its rows' blocks, if enough of these are left over."""
        if speculation.num_ahead > 1:
            ahead = np.minimum(ends + speculation.num_ahead - 1, self._max_model_len)
            self._cache.try_allocate(work.rows, work.starts, ahead, len(self._rows.running))
        return speculation.num_ahead

    def _emit(self, step: ScheduledStep) -> SchedulerOutput:
        """Turns the step into plain data, decode rows first, and puts it in flight."""
        number, (work, tokens), now = self.counters.steps, step.scheduled(), self._clock()
        rows, drafts, num_ahead = work.rows, int32(), 0
        after = int(self._rows.sampled_step.take(rows).max(initial=NO_STEP))
        sampling = rows[tokens == work.num_remaining] if step.num_prefills else rows
        if self.speculation is not None and step.computes:
            tokens, drafts = self._draft(self.speculation, step, work, tokens)
            if len(sampling) == len(rows):  # else the next step has prompts, and so no drafts
                num_ahead = self._make_room_ahead(self.speculation, work, work.starts + tokens)
        ends = work.starts + tokens
        self._rows.advance(rows, ends, sampling, number)
        snapshots = self._allocator.take_snapshots(rows, work.starts)
        blocks, copies = self._cache.take_changes()
        opened, freed = self._allocator.take_changes()
        num_tokens = self._budget.total - step.room
        prompts = rows[work.num_remaining > 1] if step.num_prefills else rows[:0]
        several, departures = tokens > 1 if len(drafts) else np.zeros(len(rows), bool), self._rows.departures
        self._allocator.in_flight.append(
            StepInFlight(
                number, rows, ends, sampling, prompts, rows[several], tokens[several] - 1, departures, copies,
                snapshots, now, num_tokens,
            )
        )  # fmt: skip
        self.counters.steps += 1
        self._last_kind = step.kind
        output = SchedulerOutput(
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
            drafts=drafts,
            num_drafts=num_ahead,
        )
        self._features.scheduled(output, self._row_of)
        return output

    def _row_of(self, key: int) -> int:
        return self._requests[key].row

    def is_masked(self, step: SchedulerOutput) -> bool:
        """Whether a feature restricts a token that this step samples. What it allows is known once all steps before
        this one have retired."""
        return bool(self._rows.num_masked and self._rows.masked[step.samples].any())

    def masks(self, step: SchedulerOutput) -> TokenMasks | None:
        """The masks of the rows of a step whose requests have not ended, one for each position of a row with drafts.
        Requests for which no token may follow end here; what the step samples for them is dropped. Call it once for
        each masked step."""
        kept = self._rows.masked[step.samples] & self._rows.going_on(step.samples)
        if not kept.any():
            return None
        if not len(step.drafts):
            rows = step.samples[kept]
            bits = self._features.all_allowed(len(rows))
            requests = [self._rows.request(row) for row in rows.tolist()]
            self._features.mask([request.features for request in requests], bits)
            return self._of_going_on(rows, bits, requests)
        counts = step.num_scheduled_tokens
        drafts = np.split(step.drafts, np.cumsum(counts - 1)[:-1])
        rows = np.repeat(step.samples[kept], counts[kept])
        bits = self._features.all_allowed(len(rows))
        requests = [self._rows.request(row) for row in step.samples[kept].tolist()]
        for request, place, own in zip(
            requests, np.flatnonzero(kept), np.split(bits, np.cumsum(counts[kept])[:-1]), strict=True
        ):
            request.features.mask(own, drafts[place])
        return self._of_going_on(rows, bits, requests)

    def _of_going_on(self, rows: Array, bits: Array, requests: Sequence[TrackedRequest]) -> TokenMasks | None:
        """The masks of those rows whose features let them go on; the requests of the others end."""
        failed = [request for request in requests if request.features.failure is not None]
        if failed:
            ended = np.isin(rows, [request.row for request in failed])
            rows, bits = rows[~ended], bits[~ended]
            for request in failed:
                self._fail(request, request.features.failure or NOTHING_ALLOWED)
        return TokenMasks(rows, bits) if len(rows) else None

    def _fail(self, request: TrackedRequest, failure: Failure, param: str | None = "") -> None:
        """param: the field at fault, "" if it is no single one."""
        self._requests.end(request, "error", message=failure.message, param=param, failure=failure.reason)

    def _end_one_that_is_stuck(self) -> None:
        """No step is in flight and nothing could be scheduled, so waiting would not help. Ends the first request with
        an error that says which resource has no room for it."""
        running = self._rows.running
        if len(running):
            request = self._rows.request(int(running[0]))
            reason = self._allocator.resources.reason(request, 1) or "the scheduler could not schedule it"
        else:
            request, reason = self._admission.why_not()
        self._requests.end(request, "error", message=f"This request cannot continue: {reason}.")

    # ---- processing outputs ------------------------------------------------------------------------------------------

    def update(self, output: StepOutput) -> EngineCoreOutputs:
        """Retires the oldest step in flight and processes its output. Tokens of requests that ended in the meantime are
        dropped."""
        step, rows, now = self._allocator.retire(output.step), self._rows, self._clock()
        self._policy.step_took(now - step.scheduled_at, step.num_tokens)
        # If the device had another step before it, its own time began when that one ended.
        seconds, self._retired_at = now - max(step.scheduled_at, self._retired_at), now
        self._features.retired(seconds, step.num_tokens)
        if self._pooled is not None:
            self._pooled.learn(step, seconds)
        rows.pending[step.sampling] -= 1
        if self.speculation is not None:
            self.counters.accepted_tokens += self.speculation.learn(step, output, seconds)
        for error in output.errors:
            if rows.goes_on(error.row):
                self._requests.end(rows.request(error.row), "error", message=error.message)
        prompt_logprobs = [
            RequestPromptLogprobs(int(rows.key[of.row]), of) for of in output.prompt_logprobs if rows.goes_on(of.row)
        ]
        pooled = [of for of in output.pooled if rows.goes_on(of.row)]
        drawn, counts, tokens, endings = self._take_tokens(step, output)
        keys = rows.key[drawn]
        logprobs = self._take_logprobs(output, drawn, counts)
        values = [RequestPooled(int(rows.key[of.row]), of.values) for of in pooled]
        self._commit(step)
        for of in pooled:
            self._requests.end(rows.request(of.row), "stop")
        for ending in endings:
            self._requests.end(ending.request, ending.reason, ending.stop_token, complete=ending.complete)
        self._allocator.release(step)
        return EngineCoreOutputs(
            keys=keys,
            counts=counts,
            tokens=tokens,
            finished=self.take_finished(),
            logprobs=logprobs,
            started=self._admission.take_started(),
            prompt_logprobs=prompt_logprobs,
            pooled=values,
            preempted=self._requests.take_preempted(),
        )

    def _take_tokens(self, step: StepInFlight, output: StepOutput) -> tuple[Array, Array, Array, list[Ending]]:
        """Rows whose request goes on, how many tokens each of them got, these tokens, and the requests that end with
        them."""
        rows, drawn, counts, tokens = self._rows, output.rows.astype(np.intp), output.counts, output.tokens
        if len(tokens) < len(drawn):
            drawn, counts = drawn[counts > 0], counts[counts > 0]
        if rows.departures != step.departures:
            going_on = rows.going_on(drawn)
            drawn, tokens, counts = drawn[going_on], tokens[np.repeat(going_on, counts)], counts[going_on]
        if len(step.drafted):
            drawn, counts, tokens, endings = self._append_several(drawn, counts, tokens)
        else:
            drawn, tokens, endings = self._append(drawn, tokens)
            counts = np.ones(len(drawn), np.int32)
        self.counters.generation_tokens += len(tokens)
        return drawn, counts, tokens, endings

    def _append(self, drawn: Array, tokens: Array) -> tuple[Array, Array, list[Ending]]:
        """One more token for each of the rows whose fields and features allow it: these rows, the tokens, and the
        requests that end with them."""
        if self._rows.num_masked:
            drawn, tokens = self._accepted(drawn, tokens)
        if self._rows.num_restricted:
            drawn, tokens = self._permitted(drawn, tokens)
        self._rows.append(drawn, tokens)
        return drawn, tokens, self._stop_rules.endings(self._rows, drawn, tokens)

    def _append_several(self, drawn: Array, counts: Array, tokens: Array) -> tuple[Array, Array, Array, list[Ending]]:
        """The same for counts[i] tokens of each row, one after the other: what follows one that ends a request is
        dropped."""
        first, taken = np.cumsum(counts) - counts, np.zeros(len(drawn), np.int32)
        going, endings = np.arange(len(drawn)), list[Ending]()
        for place in range(int(counts.max(initial=0))):
            going = going[counts[going] > place]
            kept, _, ended = self._append(drawn[going], tokens[first[going] + place])
            going = going[np.isin(drawn[going], kept)]
            taken[going] += 1
            going = going[~np.isin(drawn[going], [ending.request.row for ending in ended])]
            endings += ended
        within = np.arange(len(tokens)) - np.repeat(first, counts)
        some = taken > 0
        return drawn[some], taken[some], tokens[within < np.repeat(taken, counts)], endings

    def _accepted(self, drawn: Array, tokens: Array) -> tuple[Array, Array]:
        """Passes tokens to the features of their rows, and returns the rows and tokens that they accept. A request
        whose own fields leave no token that its features allow gets any token from the sampler, and ends here."""
        kept = np.ones(len(drawn), dtype=bool)
        for place in np.flatnonzero(self._rows.masked[drawn]).tolist():
            request = self._rows.request(int(drawn[place]))
            kept[place] = request.features.accept(int(tokens[place]))
            if not kept[place]:
                self._fail(request, request.features.failure or NOTHING_ALLOWED)
        return drawn[kept], tokens[kept]

    def _permitted(self, drawn: Array, tokens: Array) -> tuple[Array, Array]:
        """The rows and tokens that the requests' own fields allow. The sampler draws others only where they allow none:
        the request then ends here."""
        kept = np.ones(len(drawn), dtype=bool)
        for place in np.flatnonzero((tokens == FIRST) & self._rows.restricted[drawn]).tolist():
            row = int(drawn[place])
            request = self._rows.request(row)
            assert request.restrictions is not None
            if request.restrictions.forbid(self._rows.answer(row)):
                kept[place] = False
                error = request.restrictions.error()
                self._fail(request, Failure("nothing_allowed", error.message), error.param)
        return drawn[kept], tokens[kept]

    def _take_logprobs(self, output: StepOutput, drawn: Array, counts: Array) -> list[RequestLogprobs]:
        """Of the tokens that the rows got."""
        if not output.logprobs:
            return []
        got = dict(zip(drawn.tolist(), zip(self._rows.key[drawn].tolist(), counts.tolist(), strict=True), strict=True))
        taken = []
        for of in output.logprobs:
            if of.row in got:
                key, count = got[of.row]
                cut = RowLogprobs(of.row, of.ids[:count], of.logprobs[:count], of.ranks[:count])
                taken.append(RequestLogprobs(key, cut))
        return taken

    def _commit(self, step: StepInFlight) -> None:
        """Records that what the step computed is now in the KV cache, and publishes its prompts. Rows whose drafts were
        rejected go back to where their tokens end: to the state behind them, and they write over the rest."""
        rows, computed, ends, prompts = self._rows, step.rows, step.ends, step.prompts
        drafted, num_drafts = step.drafted, step.num_drafts
        if rows.departures != step.departures:
            going_on = rows.going_on(computed)
            computed, ends, prompts = computed[going_on], ends[going_on], prompts[rows.going_on(prompts)]
            going_on = rows.going_on(drafted)
            drafted, num_drafts = drafted[going_on], num_drafts[going_on]
        rows.num_retired[computed] = ends
        if len(drafted):
            known = rows.num_tokens[drafted] - 1
            self._cache.choose_states(drafted, known - rows.num_retired[drafted] + num_drafts)
            rows.num_computed_tokens[drafted] = rows.num_retired[drafted] = known
        self._allocator.publish(prompts)

    def check_integrity(self) -> None:
        """Asserts that no row or block is lost or held twice, and that none is held when there is no work."""
        self._allocator.check()
        if not self.has_work:
            self._rows.check_idle()
            assert self._cache.usage == 0.0 or self._cache.has_reservations, "blocks are held although there is no work"
