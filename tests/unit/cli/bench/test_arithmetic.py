"""Workloads, arrivals and figures: each against a calculation by hand or a law that must hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tessera.cli.bench.drive import Record, exit_code_of, failures, meets_objectives, peak_concurrency
from tessera.cli.bench.results import in_milliseconds, spread
from tessera.cli.bench.workload import Lengths, arrivals, check_fits, draw, parse_objectives
from tessera.errors import ConfigError, OverloadedError, ServerError


def record(sent, *received, tokens=None, error=None):
    return Record(4, 4, sent, list(received), len(received) if tokens is None else tokens, error)


# ---- what is asked ------------------------------------------------------------------


def test_lengths_and_ids_stay_in_their_bounds_and_fill_them():
    jobs = draw(Lengths(input_len=10, output_len=4, range_ratio=0.5), 400, vocabulary=np.array([9, 3, 5]), seed=(3,))
    assert {len(job.prompt) for job in jobs} == set(range(5, 16))
    assert {job.output_len for job in jobs} == set(range(2, 7))
    assert {token for job in jobs for token in job.prompt} == {9, 3, 5}


def test_the_same_seed_asks_the_same():
    lengths = Lengths(input_len=10, output_len=4, range_ratio=0.5)

    def asked(*seed):
        return draw(lengths, 20, vocabulary=np.arange(100), seed=seed)

    assert asked(3) == asked(3)
    assert asked(3) != asked(4)
    assert asked(3, 1) != asked(3)
    assert [
        len(job.prompt) for job in draw(Lengths(input_len=10, output_len=4), 5, vocabulary=np.arange(9), seed=(0,))
    ] == [10] * 5


def test_requests_must_fit_the_context():
    check_fits(Lengths(input_len=100, output_len=28), 128)
    check_fits(Lengths(input_len=100, output_len=100), None)
    with pytest.raises(ConfigError, match="longest requests have 129 tokens, but the model supports 128"):
        check_fits(Lengths(input_len=100, output_len=29), 128)
    with pytest.raises(ConfigError, match="192 tokens"):
        check_fits(Lengths(input_len=100, output_len=28, range_ratio=0.5), 191)


# ---- when -----------------------------------------------------------------------------


def test_an_infinite_rate_sends_all_at_once():
    assert arrivals(3, math.inf, 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_their_burstiness(burstiness, variation):
    times = arrivals(20_001, 4.0, burstiness, 7)
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    figures = spread(gaps)
    assert times[0] == 0.0
    assert min(gaps) >= 0
    assert figures["mean"] == pytest.approx(0.25, rel=0.05)
    assert figures["std"] / figures["mean"] == pytest.approx(variation, rel=0.05)


def test_arrivals_repeat_with_their_seed():
    assert arrivals(5, 2.0, 1.0, 1) == arrivals(5, 2.0, 1.0, 1) != arrivals(5, 2.0, 1.0, 2)


# ---- figures ----------------------------------------------------------------------------


def test_a_spread_by_hand():
    figures = spread([4.0, 1.0, 2.0, 3.0, 10.0])
    assert figures == pytest.approx(
        {"mean": 4.0, "median": 3.0, "std": math.sqrt(10), "p90": 4 + 0.6 * 6, "p99": 4 + 0.96 * 6}
    )
    assert set(spread([]).values()) == {0.0}
    assert in_milliseconds("ttft", {"mean": 0.5, "p90": 1.0}) == {"mean_ttft_ms": 500.0, "p90_ttft_ms": 1000.0}


def test_the_times_of_a_request_by_hand():
    one = record(10.0, 10.5, 10.75, 11.5)
    assert (one.ttft, one.e2el, one.tpot, one.itl) == (0.5, 1.5, 0.5, [0.25, 0.75])
    assert record(0.0, 2.0).tpot is None
    assert record(0.0, 1.0, 3.0, tokens=5).tpot == 0.5


def test_the_most_requests_at_one_moment():
    requests = [record(0, 1, 4), record(1, 2, 3), record(4, 5), record(3.5, 9), record(0), record(2, 2.5)]
    assert peak_concurrency(requests) == 3
    assert peak_concurrency([record(0, 1), record(1, 2)]) == 1
    assert peak_concurrency([]) == 0


def test_goodput_keeps_every_promise():
    objectives = parse_objectives(["ttft:500,tpot:100", "e2el:5000"])
    assert objectives == {"ttft": 0.5, "tpot": 0.1, "e2el": 5.0}
    assert meets_objectives(record(0, 0.5, 0.6), objectives)
    assert not meets_objectives(record(0, 0.51, 0.6), objectives)
    assert not meets_objectives(record(0, 0.5, 0.61), objectives)
    assert not meets_objectives(record(0, 0.5, 0.6, error=ServerError("x")), objectives)
    assert meets_objectives(record(0, 0.5), objectives)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "itl:3", "ttft:-1", "ttft:nan", "ttft:inf"])
def test_a_promise_that_is_none(text):
    with pytest.raises(ConfigError, match=f"--goodput '{text}' must be one of ttft, tpot, e2el"):
        parse_objectives([text])


def test_failures_are_counted_by_reason():
    records = [
        record(0, 1),
        *(record(0, error=error) for error in (ServerError("a"), OverloadedError("b"), ServerError("a"))),
    ]
    assert list(failures(records).items()) == [("a", 2), ("b", 1)]
    assert exit_code_of(records) == 8
    assert exit_code_of(records[:1]) == 0
