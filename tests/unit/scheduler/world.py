"""A scheduler, a fake device and steps in flight between them, with every promise checked after each move."""

from __future__ import annotations

from collections import deque

import numpy as np

from tessera.arrays import int32
from tessera.config import SchedulerConfig
from tessera.config.engine import SpeculativeConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request, make_cache_key
from tessera.sampling_params import SamplingParams
from tessera.scheduler import EngineCoreOutputs, FirstComeFirstServed, Scheduler
from tessera.scheduler.rows import RowStatus
from tessera.scheduler.speculation import DraftLengths
from tests.unit.scheduler.fake_device import FakeDevice, expected_answer, history


def plan(*groups: CacheGroup, num_rows: int = 8, max_model_len: int = 128) -> CachePlan:
    return CachePlan(groups or (paged(),), num_rows, max_model_len)


def paged(block_size: int = 4, num_blocks: int = 64) -> CacheGroup:
    return CacheGroup((0,), "paged", block_size, 64, num_blocks)


def window(size: int, block_size: int = 4, num_blocks: int = 64) -> CacheGroup:
    return CacheGroup((1,), "window", block_size, 64, num_blocks, size)


def state(num_rows: int = 8, copies: int = 0, drafts: int = 0) -> CacheGroup:
    return CacheGroup((9,), "state", 0, 64, num_rows * (1 + drafts) + 1 + copies, states=1 + drafts)


class Guesses:
    """Proposes what an answer to these tokens will be, but often not to the end; perhaps a sibling's."""

    def __init__(self, requests) -> None:
        self.requests = requests
        self.chance = np.random.default_rng(5)

    def propose(self, row, tokens, most):
        known = tokens.tolist()
        for request in self.requests.values():
            prompt = request.prompt.tolist()
            answered = len(known) - len(prompt)
            if known[: len(prompt)] == prompt and answered >= 0:
                answer = expected_answer(prompt, request.seed, answered + most)
                if answer[:answered] == known[len(prompt) :]:
                    return int32([self._maybe(token) for token in answer[answered:]])
        return int32()

    def _maybe(self, token):
        return token if self.chance.random() < 0.7 else int(self.chance.integers(0, 50))


class AnyLength(DraftLengths):
    """As many drafts as chance says, in each step."""

    def __init__(self, num_rows, most) -> None:
        super().__init__(num_rows, most)
        self.learned = []
        self.chance = np.random.default_rng(6)

    def choose(self, rows, limits, num_tokens):
        return self.chance.integers(0, limits + 1).astype(np.int32)

    def suspended(self, num_tokens):
        return False

    def looked(self, seconds, num_tokens, *, waited):
        pass

    def learn(self, rows, tried, accepted):
        assert (tried > 0).all()
        assert (accepted >= 0).all()
        assert (accepted <= tried).all()
        self.learned += accepted.tolist()


class World:
    """Counts keys and steps; runs steps with `depth` in flight."""

    def __init__(
        self, plan_, *, depth=1, max_num_seqs=4, budget=32, caching=True, rules=None, resources=(), eos=(), **options
    ) -> None:
        chunked = options.pop("chunked", True)
        limits = {
            name: options.pop(name) for name in ("max_waiting", "max_num_queued_tokens", "watermark") if name in options
        }
        self.plan, self.depth = plan_, depth
        self.rules = rules or StepRules()
        drafts = options.pop("drafts", 0)
        if drafts:
            limits["speculative"] = SpeculativeConfig("ngram", drafts)
        self.config = SchedulerConfig(max_num_seqs, budget, chunked, **limits)
        self.policy = options.pop("policy", None) or FirstComeFirstServed()
        self.scheduler = Scheduler(
            self.config,
            plan_,
            policy=self.policy,
            rules=self.rules,
            resources=resources,
            eos_token_ids=eos,
            prefix_caching=caching,
            max_model_len=plan_.max_model_len,
            depth=depth,
            **options,
        )
        self.scheduler._budget.least_before_border = 1  # prompts here are short
        self.resources = resources
        self.device = FakeDevice(plan_)
        self.outputs: deque = deque()
        self.requests: dict[int, Request] = {}
        self.answers: dict[int, list[int]] = {}
        self.finished: dict = {}
        self.started: dict = {}
        self.preempted: list[int] = []
        self.steps: list = []
        self.finished_at: dict[int, int] = {}
        self.next_key = 0
        if self.scheduler.speculation is not None:
            self.scheduler.speculation.proposer = Guesses(self.requests)
            self.scheduler.speculation.lengths = AnyLength(plan_.num_rows, drafts)

    def add(self, prompt, max_tokens=8, *, leader=-1, seed=None, salt="", priority=0, tenant="", **params) -> int:
        key = self.next_key
        self.next_key += 1
        request = Request(
            key=key,
            request_id=f"request-{key}",
            prompt=int32(list(prompt)),
            params=SamplingParams(max_tokens=max_tokens, **params),
            max_tokens=max_tokens,
            seed=key if seed is None else seed,
            leader=leader,
            cache_key=make_cache_key(salt),
            priority=priority,
            tenant=tenant,
        )
        self.scheduler.add(request)
        self.requests[key] = request
        self.answers[key] = []
        return key

    def schedule(self):
        preemptions = self.scheduler.counters.preemptions
        step = self.scheduler.schedule()
        if step is not None:
            self._check_step(step)
            if self.scheduler.counters.preemptions > preemptions and not self.policy.preemptive:
                keys = [int(opened.request_id.split("-")[1]) for opened in step.opened]
                assert all(self.requests[key].leader >= 0 for key in keys), "somebody starts where others are short"
            self.steps.append(step)
            self.outputs.append((self.device.execute(step), self._used(step)))
        self.check()
        return step

    def update(self) -> EngineCoreOutputs:
        output, _ = self.outputs.popleft()
        outputs = self.scheduler.update(output)
        self.take(outputs)
        self.check()
        return outputs

    def take(self, outputs: EngineCoreOutputs) -> None:
        at = 0
        for key, count in zip(outputs.keys.tolist(), outputs.counts.tolist(), strict=True):
            assert key not in self.finished, "a token after the end"
            self.answers[key] += outputs.tokens[at : at + count].tolist()
            at += count
        assert at == len(outputs.tokens)
        self.preempted += outputs.preempted
        for started in outputs.started:
            assert started.key not in self.started
            self.started[started.key] = started
        for finished in outputs.finished:
            self.end(finished)

    def end(self, finished) -> None:
        assert finished.key not in self.finished, "a request ended twice"
        self.finished[finished.key] = finished
        self.finished_at[finished.key] = len(self.steps)
        request = self.requests[finished.key]
        answer = self.answers[finished.key]
        assert answer == expected_answer(request.prompt, request.seed, len(answer)), (
            "the answer is not the request's own"
        )
        if finished.reason == "length":
            most = min(request.max_tokens, self.plan.max_model_len - len(request.prompt))
            assert len(answer) == most

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            step = self.schedule()
            if self.outputs and (step is None or len(self.outputs) >= self.depth):
                self.update()
            else:
                assert step is not None, "there is work, nothing is in flight, and nothing is scheduled"
        for finished in self.scheduler.take_finished():
            self.end(finished)
        assert not self.scheduler.has_work
        assert set(self.finished) == set(self.requests)
        self.scheduler.check_integrity()

    # ---- promises ----------------------------------------------------------------------------------------------------

    def _used(self, step) -> list[set[int]]:
        used = [set() for _ in self.plan.groups]
        for row, start in zip(step.rows.tolist(), step.starts.tolist(), strict=True):
            for group, table in enumerate(self.device.rows[row].tables):
                used[group] |= set(table[self.plan.groups[group].first_seen(start) :])
        for copy in step.copies:
            used[copy.group] |= set(copy.sources.tolist()) | set(copy.targets.tolist())
        return used

    def check(self) -> None:
        self.scheduler.check_integrity()
        for _, used in self.outputs:
            for pool, blocks in zip(self.scheduler._cache.pools, used, strict=True):
                assert not any(block in pool._free for block in blocks), "a block was freed under a step in flight"

        self._check_known()

    def _check_known(self) -> None:
        """What the prefix cache says of a block is what is in it, steps in flight included."""
        cache = self.scheduler._cache.prefix_cache
        if cache is None:
            return
        for tracked in self.scheduler._requests._by_key.values():
            links = tracked.chain.hashes
            rows = self.scheduler._rows
            waits = tracked.row < 0 or rows.status[tracked.row] == RowStatus.RESERVED
            tokens = tracked.tokens if waits else rows.tokens[tracked.row]
            hashes = history(tokens[: len(links) * cache.unit])
            for unit, link in enumerate(links):
                for group, places in enumerate(cache._blocks):
                    size, seen = self.plan.groups[group].block_size, hashes
                    if self.plan.groups[group].kind == "state":
                        size, seen = 1, hashes[cache.unit - 1 :: cache.unit]
                    for place, blocks in enumerate(places):
                        start = unit if len(seen) < len(hashes) else unit * cache.unit + place * size
                        if link in blocks:
                            held = self.device.slots[group][blocks[link]]
                            assert np.array_equal(held, seen[start : start + size]), (
                                "a block is not what it is known for"
                            )

    def _check_step(self, step) -> None:
        assert step.total_num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert len(step.rows) <= min(self.config.max_num_seqs, self.rules.max_rows or 10**9)
        if self.rules.max_tokens_per_request:
            assert step.num_scheduled_tokens.max() <= self.rules.max_tokens_per_request
        opened = {row.row: row for row in step.opened}
        tokens = {row: len(state.tokens) for row, state in self.device.rows.items()}
        tokens |= {row: len(entry.tokens) for row, entry in opened.items()}
        prefills = 0
        sampling = set(step.samples.tolist())
        for row, start, count in zip(
            step.rows.tolist(), step.starts.tolist(), step.num_scheduled_tokens.tolist(), strict=True
        ):
            prefills += (count > 1 and not len(step.drafts)) or row not in sampling
            if start + count < tokens[row]:
                assert (start + count) % self.rules.chunk_multiple == 0
                assert count % self.rules.chunk_multiple == 0
                assert self.config.chunked_prefill
        if not self.rules.mix_prefill_decode:
            assert prefills in (0, len(step.rows)), "prefill and decode in one step"
        if self.rules.max_prefill_rows is not None:
            assert prefills <= self.rules.max_prefill_rows


def prompt_of(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, 50, length).tolist()
