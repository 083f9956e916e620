"""What a simulation's records come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.simulation.fleet import FleetRun

SHARES = (50, 95, 99)


@dataclass(frozen=True)
class Goal:
    """What a good request meets, in seconds."""

    ttft: float
    # Of each request on average.
    tpot: float


@dataclass(frozen=True)
class Figures:
    """Of the requests that arrived after the warm-up. Times in seconds, lists at 50, 95 and 99 of a hundred."""

    num_requests: int
    # By the end that they came to, other than that they were answered.
    failures: dict[str, int]
    # Answered in a second, from the warm-up to the last arrival.
    requests_per_second: float
    # Of these answers, in a second.
    tokens_per_second: float
    ttft: list[float]
    tpot: list[float]
    # Of all requests, those that were answered and met the goal.
    good: float
    # Of prompt tokens, those that a cache had.
    hit_rate: float
    # That another replica took over.
    num_moves: int
    # From the beginning on, warm-up included, as all that follows.
    num_preemptions: int
    mean_usage: float
    max_usage: float
    # Real microseconds of processor time for each request, at 50 and 99 of a hundred.
    router_us: list[float]
    # Simulated requests in a real second.
    speed: float

    @property
    def settled(self) -> dict[str, object]:
        """What does not depend on the machine that simulates."""
        return {name: value for name, value in asdict(self).items() if name not in ("router_us", "speed")}


def figures(run: FleetRun, goal: Goal, *, warm_up: float = 0.0) -> Figures:
    """warm_up: seconds from the start; requests that arrive in them fill caches, and are not counted."""
    counted = [record for record in run.records if record.arrived_at >= warm_up]
    answered = [record for record in counted if record.was_answered]
    failures: dict[str, int] = {}
    for record in counted:
        if not record.was_answered:
            failures[record.outcome] = failures.get(record.outcome, 0) + 1
    until = max((record.arrived_at for record in counted), default=warm_up)
    seconds = max(until - warm_up, 1e-9)
    ended = [record for record in run.records if record.was_answered and warm_up <= record.last_token_at <= until]
    good = sum(record.ttft <= goal.ttft and record.tpot <= goal.tpot for record in answered)
    prompts = sum(record.prompt_length for record in answered)
    return Figures(
        num_requests=len(counted),
        failures=failures,
        requests_per_second=len(ended) / seconds,
        tokens_per_second=sum(record.answer_length for record in ended) / seconds,
        ttft=_shares([record.ttft for record in answered]),
        tpot=_shares([record.tpot for record in answered if record.answer_length > 1]),
        good=good / max(len(counted), 1),
        hit_rate=sum(record.num_cached for record in answered) / max(prompts, 1),
        num_moves=sum(record.num_moves for record in counted),
        num_preemptions=run.num_preemptions,
        mean_usage=run.mean_usage,
        max_usage=run.max_usage,
        router_us=_shares([1e6 * one for one in run.router_seconds], (50, 99)),
        speed=len(run.records) / max(run.wall_seconds, 1e-9),
    )


def _shares(values: Sequence[float], shares: Sequence[int] = SHARES) -> list[float]:
    return [float(np.percentile(values, share)) if values else 0.0 for share in shares]


HEADER = (
    f"{'replicas':>8} {'route':<12} {'req/s':>7} {'tok/s':>8}  {'TTFT ms 50/95/99 %':>22}  {'TPOT ms 50/95/99 %':>18}  "
    f"{'good':>6} {'hits':>6} {'preempt':>7} {'cache':>11}  {'router us':>11} {'speed':>6}"
)


def line(route: str, replicas: int, row: Figures) -> str:
    """A row under HEADER."""
    ttft = "/".join(f"{1e3 * one:.0f}" for one in row.ttft)
    tpot = "/".join(f"{1e3 * one:.1f}" for one in row.tpot)
    usage = f"{row.mean_usage:.0%} <{row.max_usage:.0%}"
    router = "/".join(f"{one:.0f}" for one in row.router_us)
    return (
        f"{replicas:8} {route:<12} {row.requests_per_second:7.1f} {row.tokens_per_second:8.0f}  "
        f"{ttft:>22}  {tpot:>18}  "
        f"{row.good:6.1%} {row.hit_rate:6.1%} {row.num_preemptions:7} {usage:>11}  {router:>11} {row.speed:6.0f}"
    )


def notes(row: Figures) -> Iterator[str]:
    """What a row does not say."""
    if row.failures:
        yield "not answered: " + ", ".join(f"{number} {name}" for name, number in sorted(row.failures.items()))
    if row.num_moves:
        yield f"another replica took over: {row.num_moves}"
