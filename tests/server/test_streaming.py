"""Streams of both routes, read by the strict reader."""

from __future__ import annotations

import json

import pytest

from tessera.errors import EngineStepError, OverloadedError, RequestError
from tessera.sampling_params import RequestOutputKind
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, Script
from tests.server.sse import check_chat, check_completion, data_of, read_stream, text_of


async def stream(api, route="chat", **fields):
    response = await (api.chat if route == "chat" else api.complete)(stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    return response.text


async def test_chat(api):
    chunks = check_chat(await stream(api))
    assert text_of(chunks) == "Hello, wörld!"
    assert api.engine.calls[0].params.output_kind is RequestOutputKind.DELTA
    # One event for the role, one a token, one for the end.
    assert len(chunks) == 1 + 5 + 1


async def test_chat_with_n(api):
    chunks = check_chat(await stream(api, n=3), n=3)
    assert [text_of(chunks, index) for index in range(3)] == ["Hello, wörld!"] * 3


@pytest.mark.parametrize("n", [1, 2])
async def test_usage_is_in_a_chunk_of_its_own(n):
    async with in_process(FakeEngine(script=Script(num_cached_tokens=3))) as api:
        body = await stream(api, n=n, stream_options={"include_usage": True})
    check_chat(body, n=n, usage=True)
    prompt = len(api.engine.calls[0].prompt)
    assert read_stream(body)[-1]["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5 * n,
        "total_tokens": prompt + 5 * n,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_continuous_usage_grows(api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = check_chat(await stream(api, stream_options=options), usage=True, continuous=True)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 5, 5]


async def test_continuous_usage_is_that_of_the_chunk_s_choice(api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = await stream(api, n=2, stream_options=options)
    chunks = check_chat(body, n=2, usage=True, continuous=True)
    for index in range(2):
        own = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [usage["completion_tokens"] for usage in own] == [0, 1, 2, 3, 4, 5, 5]
        assert own[-1]["total_tokens"] == own[-1]["prompt_tokens"] + 5
    assert read_stream(body)[-1]["usage"]["completion_tokens"] == 10
    body = await stream(api, "completions", prompt=["ab", "c"], stream_options=options)
    chunks = check_completion(body, choices=2, usage=True, continuous=True)
    last = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in chunks}
    assert [(last[index]["prompt_tokens"], last[index]["completion_tokens"]) for index in range(2)] == [(3, 5), (2, 5)]


async def test_continuous_usage_alone_is_none(api):
    check_chat(await stream(api, stream_options={"continuous_usage_stats": True}))


@pytest.mark.parametrize("value", [None, {}, {"include_usage": False}, {"include_obfuscation": True}])
async def test_no_usage_unless_asked_for(api, value):
    check_chat(await stream(api, stream_options=value))


async def test_stream_options_need_a_stream(api):
    response = await api.chat(stream_options={"include_usage": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")


async def test_chat_logprobs_come_with_their_tokens(api):
    chunks = check_chat(await stream(api, logprobs=True, top_logprobs=1))
    entries = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert entries[0] is None
    assert [entry["content"][0]["token"] for entry in entries[1:-1]] == ["Hel", "lo", ", ", "wörld", "!"]
    assert entries[1]["content"][0]["top_logprobs"][0]["token"] == "a"


async def test_tokens_without_text_send_nothing_but_what_was_asked_for():
    async with in_process(FakeEngine(script=Script(pieces=("", "é", "")))) as api:
        assert len(check_chat(await stream(api))) == 1 + 1 + 1
        chunks = check_chat(await stream(api, logprobs=True))
        assert sum(len((chunk["choices"][0]["logprobs"] or {"content": ()})["content"]) for chunk in chunks) == 3
        chunks = check_chat(await stream(api, return_token_ids=True))
        ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
        assert ids == [0, 1, 2]


async def test_an_answer_without_any_text_still_has_its_first_and_last_chunk():
    async with in_process(FakeEngine(script=Script(pieces=("",), stop_reason=7))) as api:
        chunks = check_chat(await stream(api))
    assert len(chunks) == 2
    assert chunks[-1]["choices"][0]["stop_reason"] == 7


@pytest.mark.parametrize("text", ['"\\\n\r\t\b', "data: [DONE]\n\n", "\u2028\u2029\x00\x1f\x7f", "🙂é中", "</script>"])
async def test_any_text_survives_the_frame(text):
    async with in_process(FakeEngine(script=Script(pieces=(text, text)))) as api:
        assert text_of(check_chat(await stream(api))) == text * 2
        assert text_of(check_completion(await stream(api, "completions"))) == text * 2


async def test_completions(api):
    chunks = check_completion(await stream(api, "completions"))
    assert text_of(chunks) == "Hello, wörld!"


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_begins_with_its_first_token_whatever_that_shows(route, n):
    """Then the client has it, and no other engine may answer."""
    script = Script(pieces=("", "é"), error=EngineStepError("dead"), error_at=1)
    async with in_process(FakeEngine(script=script)) as api:
        events = read_stream(await stream(api, route, n=n))
    assert [event["choices"][0]["index"] for event in events[:-1]] == list(range(n))
    assert "error" in events[-1]


async def test_completions_of_several_prompts_with_n_echo_and_usage(api):
    body = await stream(api, "completions", prompt=["ab", "cd"], n=2, echo=True, stream_options={"include_usage": True})
    chunks = check_completion(body, choices=4, usage=True)
    assert [text_of(chunks, index) for index in range(4)] == [f"{p}Hello, wörld!" for p in ("ab", "ab", "cd", "cd")]
    assert read_stream(body)[-1]["usage"]["prompt_tokens"] == 6
    assert read_stream(body)[-1]["usage"]["completion_tokens"] == 20


async def test_completion_logprobs_have_running_offsets(api):
    chunks = check_completion(await stream(api, "completions", logprobs=1))
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert [entry["text_offset"] for entry in logprobs] == [[0], [3], [5], [7], [12]]
    assert [entry["tokens"] for entry in logprobs] == [["Hel"], ["lo"], [", "], ["wörld"], ["!"]]


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("Too much.", param="prompt", code="context_length_exceeded"), 400),
        (OverloadedError("Too many wait."), 503),
        (EngineStepError("RuntimeError('/secret/x')"), 500),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
async def test_an_error_before_the_first_token_is_a_status(route, error, status, n):
    more = {"prompt": ["one", "two"]} if route == "completions" and n > 1 else {}
    async with in_process(FakeEngine(script=Script(error=error))) as api:
        response = await (api.chat if route == "chat" else api.complete)(stream=True, n=n, **more)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("error", [EngineStepError("step 3 failed"), KeyError("a bug")])
async def test_an_error_after_it_is_an_event_and_done_follows(route, error):
    async with in_process(FakeEngine(script=Script(error=error, error_at=2))) as api:
        body = await stream(api, route)
    events = data_of(body)
    assert events[-1] == "[DONE]"
    assert set(json.loads(events[-2])["error"]) == {"message", "type", "param", "code"}
    assert "step 3" not in body
    assert "a bug" not in body
    assert all("error" not in json.loads(data) for data in events[:-2])


async def test_an_answer_that_was_ended_from_outside_is_an_error_and_no_answer():
    async with in_process(FakeEngine(script=Script(finish_reason="abort"))) as api:
        assert (await api.chat()).status_code == 500
        assert "error" in read_stream(await stream(api))[-1]
