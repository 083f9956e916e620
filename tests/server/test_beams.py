"""use_beam_search on the wire. That the beams are right is for tests/engine/test_beam_search.py."""

from __future__ import annotations

import pytest

from tessera.errors import EngineStepError
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, Script
from tests.server.test_errors import check_error

SEARCH = {"use_beam_search": True, "n": 3, "max_tokens": 2}


@pytest.fixture(params=["chat", "complete"])
def post(api, request):
    return getattr(api, request.param)


async def test_choices_come_best_first(api, post):
    """Of every token the fake finds 100 the likeliest (-0.5), then 0 (-1.5), then 102 (-4.0)."""
    answer = (await post(**SEARCH, return_token_ids=True, temperature=0)).json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["token_ids"] for choice in choices] == [[100, 100], [100, 0], [0, 100]]
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    assert texts == [api.engine.tokenizer.decode(ids) for ids in ([100, 100], [100, 0], [0, 100])]
    assert answer["usage"]["completion_tokens"] == 6


async def test_every_beam_is_named_after_the_request_and_is_as_urgent(api, post):
    await post(**SEARCH, request_id="mine", priority=7, cache_salt="salt", user="me", ignore_eos=True)
    calls = api.engine.calls
    assert len(calls) == 1 + 3
    assert len({call.request_id for call in calls}) == 4
    assert all("cmpl-mine-0-0/" in call.request_id for call in calls)
    assert {(call.priority, call.cache_salt, call.tenant) for call in calls} == {(7, "salt", "me")}


async def test_tokens_found_in_the_cache_are_those_of_the_first_round():
    async with in_process(FakeEngine(script=Script(num_cached_tokens=2))) as api:
        usage = (await api.complete(**SEARCH)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2


async def test_of_more_beams_the_best_are_given(api):
    choices = (await api.complete(**{**SEARCH, "n": 2}, best_of=5)).json()["choices"]
    assert len(choices) == 2
    assert {call.params.logprobs for call in api.engine.calls} == {5}


REFUSED = {
    "stream": (True, "leave out stream"),
    "n": (21, "n must be 1 to 20, got 21"),
    "length_penalty": (10.5, "length_penalty must be from -10 to 10"),
    "stop": ("x", "cannot be combined with use_beam_search"),
    "stop_token_ids": ([1], "cannot be combined"),
    "min_tokens": (1, "cannot be combined"),
    "presence_penalty": (1, "cannot be combined"),
    "frequency_penalty": (1, "cannot be combined"),
    "repetition_penalty": (1.1, "cannot be combined"),
    "logit_bias": ({"1": 1}, "cannot be combined"),
    "allowed_token_ids": ([1], "cannot be combined"),
    "bad_words": (["x"], "cannot be combined"),
    "prompt_logprobs": (0, "cannot be combined"),
    "vllm_xargs": ({"push": 1}, "cannot be combined"),
}


@pytest.mark.parametrize("field", REFUSED)
async def test_what_does_not_go_with_it_is_refused_by_name(api, post, field):
    value, words = REFUSED[field]
    message = check_error(await post(**{**SEARCH, field: value}), 400, field)
    assert words in message
    assert not api.engine.calls


async def test_a_search_holds_the_context_as_every_answer_does(api, post):
    assert (await post(**{**SEARCH, "max_tokens": 600})).status_code == 200


async def test_what_says_nothing_is_taken(post):
    fields = {"stop": [], "min_tokens": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}}
    assert (await post(**SEARCH, **fields, stream=False, length_penalty=None, top_p=0.5, seed=3)).status_code == 200


async def test_best_of_is_from_n_to_the_most(api):
    for best_of in (2, 21, -1):
        message = check_error(await api.complete(**SEARCH, best_of=best_of), 400, "best_of")
        assert f"best_of must be 3 to 20, got {best_of}" in message
    check_error(await api.complete(**SEARCH, echo=True), 400, "echo")
    message = check_error(await api.complete(**SEARCH, prompt=["x"] * 64, best_of=9), 400, "n")
    assert "at most 512, got 64 x 9" in message


async def test_without_it_its_fields_are_refused(api, post):
    assert "needs use_beam_search" in check_error(await post(length_penalty=2), 400, "length_penalty")
    assert (await post(length_penalty=1, use_beam_search=False)).status_code == 200


async def test_an_engine_that_fails_in_a_search_is_told_of():
    async with in_process(FakeEngine(script=Script(error=EngineStepError("x")))) as api:
        assert (await api.complete(**SEARCH)).status_code == 500
        assert not api.engine.running
