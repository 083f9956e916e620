"""Answers that nobody reads: they end before they take all memory, and the others go on."""

from __future__ import annotations

import asyncio

import pytest

from tessera.engine import output_readers
from tessera.errors import AnswerTooLargeError, OverloadedError
from tessera.sampling_params import RequestOutputKind
from tests.engine import fakes
from tests.engine.test_async_engine import params, tokens_of, until

DELTA, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


@pytest.fixture(autouse=True)
def _count_always(monkeypatch):
    monkeypatch.setattr(output_readers, "COUNT_SECONDS", 0.0)


async def test_a_stream_that_is_not_read_ends_and_one_that_is_goes_on(start, monkeypatch):
    monkeypatch.setattr(output_readers, "MAX_UNREAD", 200)
    engine = await start("brisk")
    unread = engine.generate([1], params(max_tokens=4000, output_kind=DELTA))
    await anext(unread)
    assert await tokens_of(engine, [2], max_tokens=300, output_kind=DELTA) == fakes.answer([2], 300)
    await until(lambda: engine.metrics.stats.num_running == 0)
    with pytest.raises(AnswerTooLargeError, match="read it faster"):
        await anext(unread)


async def test_log_probabilities_and_all_answers_of_a_request_count(start, monkeypatch):
    monkeypatch.setattr(output_readers, "MAX_UNREAD", 2 * 60 * 5 * 2)
    engine = await start("brisk")
    fits = {"max_tokens": 60, "logprobs": 4, "n": 2, "output_kind": FINAL_ONLY, "temperature": 1.0}
    assert len(await tokens_of(engine, [1], **fits)) == 2 * 60
    with pytest.raises(AnswerTooLargeError, match="fewer log probabilities"):
        await tokens_of(engine, [1], **{**fits, "n": 3})


async def test_all_answers_together_have_a_limit_and_new_ones_wait_for_readers(start, monkeypatch):
    monkeypatch.setattr(output_readers, "MAX_UNREAD", 800)
    monkeypatch.setattr(output_readers, "SHARE", 1)
    engine = await start("brisk")
    streams = [engine.generate([number], params(max_tokens=4000, output_kind=DELTA)) for number in range(1, 4)]
    for stream in streams:
        await anext(stream)
    await until(lambda: engine.metrics.stats.num_running == 2)
    with pytest.raises(OverloadedError, match="waits to be read"):
        await tokens_of(engine, [9])
    results = await asyncio.gather(*(anext(stream) for stream in streams), return_exceptions=True)
    assert sum(isinstance(result, OverloadedError) for result in results) == 1


async def test_new_requests_are_taken_again_once_those_who_did_not_read_have_left(start, monkeypatch):
    """Though no step of the engine comes by, at which unread answers are counted."""
    monkeypatch.setattr(output_readers, "MAX_UNREAD", 800)
    engine = await start("brisk")
    streams = [engine.generate([number], params(max_tokens=250, output_kind=DELTA)) for number in range(1, 4)]
    for stream in streams:
        await anext(stream)
    await until(lambda: engine.metrics.stats.num_running == 0)
    with pytest.raises(OverloadedError, match="waits to be read"):
        await tokens_of(engine, [9])
    for stream in streams:
        await stream.aclose()
    assert await tokens_of(engine, [9], max_tokens=5) == fakes.answer([9], 5)


async def test_an_id_may_be_used_again_before_its_first_reader_is_at_the_end(start):
    engine = await start("brisk")
    first = engine.generate([1], params(max_tokens=50, output_kind=DELTA), "same")
    seen = (await anext(first)).outputs[0].token_ids
    await until(lambda: engine.metrics.request_success["length"] == 1)
    second = engine.generate([2], params(max_tokens=50, output_kind=DELTA), "same")
    again = (await anext(second)).outputs[0].token_ids
    seen += [token async for output in first for token in output.outputs[0].token_ids]
    again += [token async for output in second for token in output.outputs[0].token_ids]
    assert (seen, again) == (fakes.answer([1], 50), fakes.answer([2], 50))


async def test_a_stream_forgets_the_log_probabilities_that_were_read(start):
    engine = await start("brisk")
    stream = engine.generate([1], params(max_tokens=50, logprobs=3, output_kind=DELTA), "mine")
    seen = []
    async for output in stream:
        seen += output.outputs[0].logprobs
        state = engine._handle.front_end.find("mine")
        assert state is None or state.num_unread <= 50 * 4 - 4 * len(seen)
    assert len(seen) == 50
