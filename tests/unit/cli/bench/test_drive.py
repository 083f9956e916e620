"""The driver against a server whose times are known, on a clock that only waiting moves."""

from __future__ import annotations

import asyncio

import pytest

from tessera.cli.bench.drive import CompletionExchange, Driver
from tessera.cli.bench.results import details, serving_figures, show_serving, throughput_figures
from tessera.cli.bench.workload import BenchRequest
from tessera.cli.client import AnswerDelta, RequestUsage
from tessera.cli.client.remote import connect
from tests.unit.cli.fake_server import URL, FakeServer, Timing, VirtualTime

ONE = BenchRequest([1, 2, 3, 4], 3)


def driven(timings, times, **settings):
    """(records, seconds, server) of as many jobs as there are times."""
    server = FakeServer(timings)

    async def drive():
        clock = asyncio.get_running_loop().time
        async with connect(URL, api_key=None, model_name=None, transport=server) as client:
            driver = Driver(CompletionExchange(client, {"temperature": 0.0}), clock=clock, **settings)
            return await driver.run([ONE] * len(times), times)

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return *runner.run(drive()), server


def test_every_figure_by_hand():
    """Three requests, two at once: the third is sent when the first ends, at 0.7 s."""
    timings = [Timing(0.5, 0.1), Timing(1.0, 0.2), Timing(0.5, 0.1)]
    records, seconds, server = driven(timings, [0.0] * 3, max_concurrency=2)
    figures = serving_figures(records, seconds, {"ttft": 0.6, "tpot": 0.15})
    assert all(body["ignore_eos"] is True and body["max_tokens"] == 3 for body in server.asked)
    expected = {
        "duration": 1.4,
        "completed": 3,
        "failed": 0,
        "total_input_tokens": 12,
        "total_output_tokens": 9,
        "request_throughput": 3 / 1.4,
        "output_throughput": 9 / 1.4,
        "total_token_throughput": 21 / 1.4,
        "request_goodput": 2 / 1.4,
        "max_concurrent_requests": 2,
        "short_answers": 0,
        # Times to the first token: 0.5, 0.5, 1.0 s.
        "mean_ttft_ms": 2000 / 3,
        "median_ttft_ms": 500.0,
        "p90_ttft_ms": 900.0,
        "p99_ttft_ms": 990.0,
        # 0.1, 0.1, 0.2 s for each token after it.
        "mean_tpot_ms": 400 / 3,
        "median_tpot_ms": 100.0,
        "p90_tpot_ms": 180.0,
        # Two gaps each.
        "mean_itl_ms": 400 / 3,
        "median_itl_ms": 100.0,
        "p90_itl_ms": 200.0,
        # 0.7, 0.7, 1.4 s.
        "mean_e2el_ms": 2800 / 3,
        "median_e2el_ms": 700.0,
        "p90_e2el_ms": 1260.0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert figures["errors"] == {}
    assert [record.sent - records[0].sent for record in records] == pytest.approx([0.0, 0.0, 0.7])


def test_requests_are_sent_at_their_times_whatever_others_do():
    records, seconds, _ = driven([Timing(5.0, 0.0), Timing(0.1, 0.0)], [0.0, 0.25, 2.0])
    assert [record.sent - records[0].sent for record in records] == pytest.approx([0.0, 0.25, 2.0])
    assert seconds == pytest.approx(5.0)


def test_failures_are_counted_and_named_and_in_no_time():
    timings = [
        Timing(0.5, 0.1),
        Timing(status=503, error="full"),
        Timing(9.0),
        Timing(0.1, 0.1, cut=2),
        Timing(0.5, 0.1),
    ]
    done = []
    records, seconds, _ = driven(timings, [0.0] * 5, timeout=2.0, on_done=done.append)
    figures = serving_figures(records, seconds, {})
    assert (figures["completed"], figures["failed"], figures["total_output_tokens"]) == (2, 3, 6)
    assert figures["errors"] == {
        "full": 1,
        "The answer was not complete within 2 s.": 1,
        "The server at http://server.test/v1 closed the connection in the middle of an answer.": 1,
    }
    assert (figures["mean_ttft_ms"], figures["p99_e2el_ms"]) == pytest.approx((500.0, 700.0))
    assert figures["max_concurrent_requests"] == 2
    assert done == [1, 2, 3, 4, 5]
    text = show_serving(figures)
    assert "Failed requests                               3" in text
    assert "full" in text
    assert details(records)["reasons"][1] == "full"
    assert details(records)["ttfts"][1] is None


def test_answers_shorter_than_asked_are_counted():
    records, seconds, _ = driven([Timing(0.1)], [0.0, 0.0])
    records[0].max_tokens = 5  # of a server that does not know ignore_eos
    figures = serving_figures(records, seconds, {})
    assert figures["short_answers"] == 1
    assert "Answers shorter than requested" in show_serving(figures)


async def test_an_answer_without_tokens_is_a_failure():
    class Silent:
        async def complete(self, _prompt, _sampling):
            yield AnswerDelta(usage=RequestUsage(4, 0))

    (record,), _ = await Driver(CompletionExchange(Silent(), {})).run([ONE], [0.0])
    assert record.error.message == "The answer had no tokens."


def test_throughput_by_hand():
    records, seconds, _ = driven([Timing(0.5, 0.25), Timing(1.0, 0.5), Timing(status=500)], [0.0] * 3)
    figures = throughput_figures(records, seconds)
    assert figures == {
        "elapsed_time": pytest.approx(2.0),
        "num_requests": 3,
        "completed": 2,
        "failed": 1,
        "total_num_tokens": 14,
        "total_input_tokens": 8,
        "total_output_tokens": 6,
        "requests_per_second": pytest.approx(1.0),
        "tokens_per_second": pytest.approx(7.0),
        "input_tokens_per_second": pytest.approx(4.0),
        "output_tokens_per_second": pytest.approx(3.0),
        "errors": {"The server at http://server.test/v1 failed: HTTP status 500": 1},
    }
