"""The engine's metrics as plain values: counters, gauges and histograms. The names are vLLM's without the prefix; the
server formats them.

They are collected in the front end from the engine's reports, so they add nothing to the engine's steps. Times are
seconds on time.monotonic()."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from msgspec.structs import replace

from tessera.engine.messages import EngineStats
from tessera.errors import QueuedTokensError, QueueFullError
from tessera.kv_transfer_params import RECEIVED
from tessera.platform.feature import FailureReason, FeatureCounter
from tessera.request import RequestMetrics
from tessera.scheduler.outputs import SchedulerCounters

FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
BETWEEN_TOKENS_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ANSWERS_BOUNDS = (1, 2, 5, 10, 20)
PREEMPTIONS_BOUNDS = (1, 2, 3, 4, 5, 10, 20)


class Histogram:
    """counts[i]: how many values are above bounds[i - 1] and at most bounds[i]; the last: how many are above all
    bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(frozen=True)
class Metric:
    """The current value of a metric. label: name and value of the label that distinguishes metrics of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    documentation: str
    value: float | Histogram
    label: tuple[str, str] | None = None


class EngineMetrics:
    """The metrics that a FrontEnd collects. They may be read at any time."""

    def __init__(self, max_model_len: int) -> None:
        sizes = token_bounds(max_model_len)
        self.stats = EngineStats()
        self.engine_restarts = 0
        self.replayed_requests = 0
        self.text_worker_restarts = 0
        self.media_worker_restarts = 0
        self._before = SchedulerCounters()
        # Prompt tokens that were found in the prefix cache and computed here.
        self._local_hits = 0
        self._fallbacks_before: Counter[str] = Counter()
        self._compilations_before = 0
        # Of features, by name.
        self._counted_before: dict[str, FeatureCounter] = {}
        self.request_success = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.request_failures: dict[FailureReason, int] = dict.fromkeys(get_args(FailureReason), 0)
        self.admission_rejections = {error.limit: 0 for error in (QueueFullError, QueuedTokensError)}
        self.time_to_first_token_seconds = Histogram(FIRST_TOKEN_BOUNDS)
        self.inter_token_latency_seconds = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.request_time_per_output_token_seconds = Histogram(BETWEEN_TOKENS_BOUNDS)
        self.e2e_request_latency_seconds = Histogram(REQUEST_BOUNDS)
        self.request_queue_time_seconds = Histogram(REQUEST_BOUNDS)
        self.request_inference_time_seconds = Histogram(REQUEST_BOUNDS)
        self.request_prefill_time_seconds = Histogram(REQUEST_BOUNDS)
        self.request_decode_time_seconds = Histogram(REQUEST_BOUNDS)
        self.request_prompt_tokens = Histogram(sizes)
        self.request_prefill_kv_computed_tokens = Histogram(sizes)
        self.request_generation_tokens = Histogram(sizes)
        self.request_max_num_generation_tokens = Histogram(sizes)
        self.request_params_max_tokens = Histogram(sizes)
        self.request_params_n = Histogram(ANSWERS_BOUNDS)
        self.request_num_preemptions = Histogram(PREEMPTIONS_BOUNDS)
        self.iteration_tokens_total = Histogram(STEP_BOUNDS)
        self._step_tokens = 0

    def engine_lost(self) -> None:
        """The engine ended: resets the gauges and keeps the counters."""
        self._before = _sum(self._before, self.stats.counters)
        self._fallbacks_before.update(self.stats.fallbacks)
        self._compilations_before += self.stats.compilations
        self._counted_before = self._counted()
        self.stats = EngineStats()

    def scheduled(self, times: RequestMetrics) -> None:
        self.request_queue_time_seconds.observe(max(0.0, times.first_scheduled - times.arrival))

    def tokens(self, times: RequestMetrics, count: int, now: float, *, num_computed: int) -> None:
        """`count` tokens of one completion arrived at `now`. times: not updated yet. num_computed: prompt tokens that
        were computed for it, not found in a cache."""
        self._step_tokens += count
        if not times.first_token:
            self._step_tokens += num_computed
            self.time_to_first_token_seconds.observe(now - times.arrival)
            if times.first_scheduled:
                self.request_prefill_time_seconds.observe(now - times.first_scheduled)
            count -= 1
        if count:
            self.inter_token_latency_seconds.observe((now - (times.last_token or now)) / count, count)

    def stepped(self) -> None:
        """All tokens of a step were counted by tokens(). A step that returned none is not observed."""
        if self._step_tokens:
            self.iteration_tokens_total.observe(self._step_tokens)
            self._step_tokens = 0

    def finished(
        self,
        reason: str,
        times: RequestMetrics,
        num_prompt_tokens: int,
        num_generated: int,
        now: float,
        *,
        num_computed: int,
        max_tokens: int,
        num_preemptions: int,
    ) -> None:
        """A completion ended. num_computed: as for tokens(). max_tokens: the most that it could have had.
        num_preemptions: how often it lost its row."""
        self.request_success[reason] += 1
        self.e2e_request_latency_seconds.observe(now - times.arrival)
        if times.first_token:
            decode = times.last_token - times.first_token
            self.request_decode_time_seconds.observe(decode)
            self.request_prefill_kv_computed_tokens.observe(num_computed)
            if times.first_scheduled:
                self.request_inference_time_seconds.observe(times.last_token - times.first_scheduled)
            if num_generated > 1:
                self.request_time_per_output_token_seconds.observe(decode / (num_generated - 1))
        self.request_prompt_tokens.observe(num_prompt_tokens)
        self.request_generation_tokens.observe(num_generated)
        self.request_params_max_tokens.observe(max_tokens)
        self.request_num_preemptions.observe(num_preemptions)

    def all_finished(self, n: int, most_generated: int) -> None:
        """All `n` completions of a request ended. most_generated: tokens of the longest."""
        self.request_params_n.observe(n)
        self.request_max_num_generation_tokens.observe(most_generated)

    def read(self) -> Iterator[Metric]:
        """All metrics, in a fixed order."""
        stats, counters = self.stats, _sum(self._before, self.stats.counters)
        yield Metric("num_requests_running", "gauge", "Running requests.", stats.num_running)
        yield Metric("num_requests_waiting", "gauge", "Waiting requests.", stats.num_waiting)
        # In vLLM's words: deferred ones wait for something of their own, such as a grammar, whatever room there is.
        for reason, count in (("capacity", stats.num_waiting - stats.num_deferred), ("deferred", stats.num_deferred)):
            yield Metric("num_requests_waiting_by_reason", "gauge", _WAITING, count, ("reason", reason))
        for limit, count in self.admission_rejections.items():
            yield Metric("admission_rejections", "counter", _REJECTIONS, count, ("reason", limit))
        yield Metric("kv_cache_usage_perc", "gauge", "Fraction of the KV cache in use, 0 to 1.", stats.kv_usage)
        yield Metric(
            "prefix_cache_queries",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            counters.prefix_queries_tokens,
        )
        yield Metric(
            "prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache.", counters.cached_prompt_tokens
        )
        yield Metric("prompt_tokens", "counter", "Prompt tokens, computed or cached.", counters.prompt_tokens)
        found = counters.cached_prompt_tokens + counters.forked_tokens
        yield Metric("prompt_tokens_cached", "counter", "Prompt tokens cached, or shared with a sibling.", found)
        for source, count in self._by_source(counters.prompt_tokens, found):
            yield Metric("prompt_tokens_by_source", "counter", "Prompt tokens, by source.", count, ("source", source))
        yield Metric("generation_tokens", "counter", _GENERATED, counters.generation_tokens)
        yield Metric("num_preemptions", "counter", "Preemptions of running requests.", counters.preemptions)
        yield Metric("spec_decode_num_drafts", "counter", "Sequences of draft tokens verified.", counters.drafts)
        yield Metric("spec_decode_num_draft_tokens", "counter", "Draft tokens verified.", counters.draft_tokens)
        yield Metric("spec_decode_num_accepted_tokens", "counter", "Draft tokens accepted.", counters.accepted_tokens)
        for one in self._counted().values():
            yield Metric(one.name, "counter", one.documentation, one.value)
        yield Metric("engine_restarts", "counter", "Engines started to replace one that died.", self.engine_restarts)
        yield Metric(
            "replayed_requests", "counter", "Requests rerun on a new engine after theirs died.", self.replayed_requests
        )
        yield Metric(
            "text_worker_restarts",
            "counter",
            "Text worker processes started to replace one that ended.",
            self.text_worker_restarts,
        )
        yield Metric(
            "media_worker_restarts",
            "counter",
            "Media worker processes started to replace one that ended.",
            self.media_worker_restarts,
        )
        for op, count in sorted((self._fallbacks_before + Counter(stats.fallbacks)).items()):
            yield Metric("reference_fallbacks", "counter", "Runs of an op's reference.", count, ("op", op))
        compiled = self._compilations_before + stats.compilations
        yield Metric("kernel_compilations", "counter", "Kernels compiled while requests were served.", compiled)
        for reason, count in self.request_success.items():
            yield Metric(
                "request_success", "counter", "Finished completions, by reason.", count, ("finished_reason", reason)
            )
        for reason, count in self.request_failures.items():
            yield Metric("request_failures", "counter", _FAILURES, count, ("reason", reason))
        for name, documentation in _HISTOGRAMS.items():
            yield Metric(name, "histogram", documentation, getattr(self, name))

    def _by_source(self, num_tokens: int, num_cached: int) -> Iterator[tuple[str, int]]:
        """Prompt tokens: what another engine sent is found in the prefix cache as anything else, by a request that may
        start later."""
        received = self._counted().get(RECEIVED)
        external = 0 if received is None else min(received.value, num_cached)
        self._local_hits = max(self._local_hits, num_cached - external)  # which never falls
        yield "local_compute", num_tokens - num_cached
        yield "local_cache_hit", self._local_hits
        if received is not None:
            yield "external_kv_transfer", num_cached - self._local_hits

    def _counted(self) -> dict[str, FeatureCounter]:
        """What features counted, engines that were lost included."""
        counted = dict(self._counted_before)
        for one in self.stats.feature_counters:
            before = counted.get(one.name)
            counted[one.name] = one if before is None else replace(one, value=before.value + one.value)
        return counted


_GENERATED = (
    "Tokens generated. request_generation_tokens has fewer: it leaves out those that were in flight when their request "
    "was aborted."
)
_WAITING = "Waiting requests: those that want room, and those that something of their own, as a grammar, holds back."
_REJECTIONS = "Requests refused because as many requests, or tokens of prompts, waited as may, by the limit's name."
_FAILURES = "Requests ended by an error because nothing may follow in their answer, by reason."
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Time from a request's arrival to its first token.",
    "inter_token_latency_seconds": "Time between two tokens of a completion.",
    "request_time_per_output_token_seconds": "Mean time between two tokens of a completion.",
    "e2e_request_latency_seconds": "Time from a request's arrival to its end.",
    "request_queue_time_seconds": "Time from a request's arrival to its first step.",
    "request_inference_time_seconds": "Time from a request's first step to its last token.",
    "request_prefill_time_seconds": "Time from a request's first step to its first token.",
    "request_decode_time_seconds": "Time from a request's first token to its last.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens of a request that were computed, not found in a cache.",
    "request_generation_tokens": "Tokens of a completion.",
    "request_max_num_generation_tokens": "Tokens of the longest completion of a request.",
    "request_params_max_tokens": "The most tokens that a completion could have had.",
    "request_params_n": "Completions that a request asked for.",
    "request_num_preemptions": "How often a completion was preempted.",
    "iteration_tokens_total": "Tokens of a step: those generated, and the computed prompts of the requests it began.",
}


def _sum(first: SchedulerCounters, second: SchedulerCounters) -> SchedulerCounters:
    names = [field.name for field in fields(SchedulerCounters)]
    return SchedulerCounters(**{name: getattr(first, name) + getattr(second, name) for name in names})


def token_bounds(max_tokens: int) -> tuple[int, ...]:
    """The bounds 1, 2, 5, 10, 20, 50, ... up to `max_tokens`."""
    bounds, power = [], 1
    while power <= max_tokens:
        bounds += [digit * power for digit in (1, 2, 5) if digit * power <= max_tokens]
        power *= 10
    return tuple(bounds)
