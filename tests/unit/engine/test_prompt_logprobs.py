"""A prompt's log probabilities put together from what steps bring, and how often a stream gives something out."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.request import Logprob
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.scheduler.outputs import FinishedRequest, RequestPromptLogprobs
from tessera.step import PromptLogprobs
from tests.unit.engine.bytewise import byte_tokenizer, front_end, step
from tests.unit.engine.test_frontend import begin, feed

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


def scored(start: int, tokens: bytes, value: float) -> PromptLogprobs:
    ids = int32([[token, 120] for token in tokens])
    values = np.float32([[value, -0.25]] * len(tokens))
    return PromptLogprobs(0, start, ids, values, int32([3] * len(tokens)))


def send(front, key, *pieces):
    outputs = step({})
    outputs.prompt_logprobs = [RequestPromptLogprobs(key, piece) for piece in pieces]
    assert front.update(outputs, 1.0).changed == []


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_pieces_in_any_order_and_again_after_preemption(kind):
    front, state = begin(SamplingParams(n=2, seed=1, prompt_logprobs=1, output_kind=kind), "abcd")
    first, second = (request.key for request in state.requests)
    assert [request.params.prompt_logprobs for request in state.requests] == [1, None]
    send(front, first, scored(1, b"b", -9.0))
    send(front, first, scored(1, b"bc", -1.5), scored(3, b"d", -1.5))
    send(front, 10**6, scored(1, b"zzz", -1.0))
    front.update(step({first: [97]}, finished=[FinishedRequest(first, "length")]), 2.0)
    output = state.take()
    expected = [None, *({ord(c): Logprob(-1.5, 3, c), 120: Logprob(-0.25, 1, "x")} for c in "bcd")]
    if kind is not FINAL_ONLY:
        assert list(output.prompt_logprobs) == expected
    front.update(step({second: [97]}, finished=[FinishedRequest(second, "length")]), 3.0)
    last = state.take().prompt_logprobs
    assert last is None if kind is DELTA else list(last) == expected


def test_nobody_asked():
    front, state = begin(SamplingParams(max_tokens=3))
    outputs, _ = feed(front, state, [[97]], finish=("length",))
    assert outputs[-1].prompt_logprobs is None


@pytest.mark.parametrize(
    ("kind", "texts"),
    [(DELTA, ["a", "bcd", "efg", "h"]), (CUMULATIVE, ["a", "abcd", "abcdefg", "abcdefgh"]), (FINAL_ONLY, ["abcdefgh"])],
)
def test_a_stream_interval_gives_the_first_token_the_last_and_every_so_many(kind, texts):
    front, state = begin(SamplingParams(max_tokens=90, stream_interval=3, output_kind=kind))
    outputs, _ = feed(front, state, [[token] for token in b"abcdefgh"], finish=("length",))
    assert [output.outputs[0].text for output in outputs] == texts


def test_numbers_for_features_become_columns():
    params = SamplingParams(extra_args={"push": 2, "on": True})
    front = front_end(byte_tokenizer())
    (request,) = front.submit(front.prepare([72, 105], params), params, "r", arrival=0.0).requests
    assert request.columns == {"push": 2.0, "on": 1.0}
