"""What the front end takes and what it refuses, before the engine hears of it."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import OverloadedError, RequestError
from tessera.sampling_params import SamplingParams
from tests.unit.engine.bytewise import MAX_MODEL_LEN, NUM_TOKENS, byte_tokenizer, front_end

TOKENIZER = byte_tokenizer()


def requests(params, prompt="Hi", front=None):
    front = front or front_end(TOKENIZER)
    ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    return front.submit(front.prepare(ids, params), params, "r", arrival=1.0).requests


def test_text_becomes_token_ids():
    (request,) = requests(SamplingParams(max_tokens=3))
    assert request.prompt.tolist() == list(b"Hi")
    assert request.prompt.dtype == np.int32
    assert (request.max_tokens, request.leader, request.arrival) == (3, -1, 1.0)


def test_without_max_tokens_the_answer_may_fill_the_context():
    (request,) = requests(SamplingParams(max_tokens=None))
    assert request.max_tokens == MAX_MODEL_LEN - 2


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(RequestError, match="prompt is empty"):
        requests(SamplingParams(), prompt)


@pytest.mark.parametrize("prompt", [[-1], [NUM_TOKENS], [2**31], [2**63 - 1], [5, 2**32 + 5]])
def test_ids_outside_the_vocabulary_are_refused(prompt):
    with pytest.raises(RequestError, match="out of the vocabulary: ids are 0 to 256"):
        requests(SamplingParams(), prompt)


@pytest.mark.parametrize("prompt", [[1.5], ["a"], [None], [[1], [2]], [[1], 2], [2**70], [True, False], b"bytes", [{}]])
def test_what_is_no_list_of_ids_is_refused(prompt):
    with pytest.raises(RequestError, match=r"must be a string or a list of token ids|out of the vocabulary"):
        requests(SamplingParams(), prompt)


def test_the_context_limit_is_said_in_the_words_clients_look_for():
    with pytest.raises(RequestError) as caught:
        requests(SamplingParams(max_tokens=99), "Hi")
    assert caught.value.message.startswith(
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens "
        "(2 in the prompt, 99 for the completion)."
    )
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1])
def test_a_prompt_that_leaves_no_room_is_refused(length):
    with pytest.raises(RequestError, match=rf"requested {length + 1} tokens \({length} in the prompt, 1 for"):
        requests(SamplingParams(max_tokens=None), [1] * length)


def test_the_longest_prompt_has_room_for_one_token():
    (request,) = requests(SamplingParams(max_tokens=None), [1] * (MAX_MODEL_LEN - 1))
    assert request.max_tokens == 1


def test_n_answers_are_n_requests_that_share_the_first_ones_prompt():
    many = requests(SamplingParams(n=3, seed=7))
    first = many[0].key
    assert [request.key for request in many] == [first, first + 1, first + 2]
    assert [request.leader for request in many] == [-1, first, first]
    assert [request.seed for request in many] == [7, 8, 9]


def test_seeds_wrap_at_64_bits():
    assert [request.seed for request in requests(SamplingParams(n=2, seed=2**64 - 1))] == [2**64 - 1, 0]
    assert [request.seed for request in requests(SamplingParams(n=2, seed=-1 - 2**62))] == [
        2**64 - 1 - 2**62,
        2**64 - 2**62,
    ]


def test_unseeded_answers_have_seeds_of_their_own_that_repeat_with_the_engines_seed():
    first, again = (
        [request.seed for request in requests(SamplingParams(n=4), front=front_end(TOKENIZER))] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == 4
    assert all(0 <= seed < 2**63 for seed in first)


def test_too_many_requests_are_refused_at_once():
    front = front_end(TOKENIZER, max_num_seqs=2, max_waiting=1)
    params = SamplingParams(n=2)
    prompt = front.prepare(TOKENIZER.encode("Hi"), params)
    states = [front.submit(prompt, params, "0", arrival=0.0)]
    with pytest.raises(OverloadedError):
        front.submit(prompt, params, "1", arrival=0.0)
    front.drop(states[0], 0.0)
    front.submit(prompt, params, "1", arrival=0.0)


def test_an_id_cannot_run_twice_at_a_time():
    front = front_end(TOKENIZER)
    params = SamplingParams()
    prompt = front.prepare(TOKENIZER.encode("Hi"), params)
    state = front.submit(prompt, params, "same", arrival=0.0)
    with pytest.raises(RequestError, match="'same' is already running"):
        front.submit(prompt, params, "same", arrival=0.0)
    front.drop(state, 0.0)
    front.submit(prompt, params, "same", arrival=0.0)


def test_without_a_tokenizer_only_ids_are_taken():
    front = front_end(None)
    assert front.prepare([1, 2], SamplingParams()).ids.tolist() == [1, 2]
    with pytest.raises(RequestError, match="stop strings"):
        front.prepare([1], SamplingParams(stop="x"))
