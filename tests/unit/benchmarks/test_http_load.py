from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.engines import Engine
from benchmarks.http_load import Answer, HttpError, Load, body, closed_loop, percentile
from benchmarks.task import CHECK_TOKENS, Task

from tests.unit.benchmarks.stub_server import FIRST, TOKEN_SECONDS, serve

TASK = Task("http", "/models/small", "/models/small", "bfloat16", 4, 6, [1, 2], 1000, 2, 0)


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    server = serve(0, getattr(request, "param", ""))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def load(port: int, prompts: list[list[int]], tokens: int, clients: int) -> Load:
    return asyncio.run(closed_loop(port, [body(prompt, tokens, {}) for prompt in prompts], clients))


def test_every_request_is_answered_and_timed(port: int):
    found = load(port, [[1, 2]] * 5, 4, clients=2)
    assert [(answer.tokens, len(answer.arrived)) for answer in found.answers] == [(4, 4)] * 5
    assert {answer.text for answer in found.answers} == {"".join(f"<{FIRST + index}>" for index in range(4))}
    assert found.seconds >= 3 * 4 * TOKEN_SECONDS  # one client has three of the five
    assert all(answer.sent < answer.arrived[0] <= answer.arrived[-1] for answer in found.answers)


def test_figures_are_of_all_tokens_and_of_the_gaps_between_them():
    answers = [Answer(0.0, [0.5, 0.6, 0.7], "", 3), Answer(1.0, [1.1, 1.2, 1.6], "", 3)]
    figures = Load(answers, 2.0).figures()
    assert figures == pytest.approx({"output": 3.0, "ttft_p50_ms": 100, "itl_p50_ms": 100, "itl_p95_ms": 400})


@pytest.mark.parametrize(("share", "value"), [(50, 2.0), (75, 3.0), (76, 4.0), (95, 4.0)])
def test_a_percentile_is_one_of_the_values(share: int, value: float):
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


@pytest.mark.parametrize("port", ["falls short"], indirect=True)
def test_a_short_answer_is_an_error(port: int):
    with pytest.raises(HttpError, match=r"an answer has 3 tokens and 3 events, not 4 tokens"):
        load(port, [[1]], 4, clients=1)


def test_a_served_engine_gives_a_result_for_each_number_of_clients(tmp_path: Path):
    engine = Engine("stub", "tests.unit.benchmarks.stub_driver", Path(sys.prefix), converted=tmp_path)
    results = list(engine.loaded(TASK))
    assert [(result["batch"], result["version"], result["bits"]) for result in results] == [
        (1, "stub 1", 8.5),
        (2, "stub 1", 8.5),
    ]
    answer = list(range(FIRST, FIRST + CHECK_TOKENS))
    assert [result["answers"] for result in results] == [[answer], [answer, answer]]
    assert all(result["values"]["output"] > 0 and result["peak_bytes"] > 0 for result in results)
    assert all(0 < result["values"]["ready_s"] < 60 for result in results)
