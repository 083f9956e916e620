"""Every error has OpenAI's body with its four keys, and tells nothing of the machine."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import (
    EngineDeadError,
    EngineStepError,
    FatalRequestError,
    MemoryBudgetError,
    ModelError,
    OverloadedError,
)
from tessera.server.openai.unserved_fields import CHAT, COMPLETIONS, GENERATION
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, Script

LEAKS = re.compile(r"(?<![\w<])/(?!v1/)\w+/|Traceback|0x[0-9a-f]{6}|\bobject at\b|<class|Error\(|\.py\b|msgspec|\$\.")


def check_error(response, status, param=None, code=None, kind="invalid_request_error"):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, param, code)
    assert error["message"].endswith((".", '"', "?"))
    assert not LEAKS.search(error["message"]), error["message"]
    assert len(error["message"]) <= 1000
    return error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b'{"model": NaN}',
        b'{"model": "fake-model", "temperature": Infinity}',
        b'{"model": "fake-model", "temperature": -Infinity}',
        b'{"model": "fake-model"} {}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        '{"model": "fake-model"}'.encode("utf-16"),
        b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"messages": ' + b"[" * 200_000,
        b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"model": "fake-model", "messages": [{"role": "user", "content": "x", "y": '
        + b"[" * 9999
        + b"]" * 9999
        + b"}]}",
        b'{"tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(18),
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_broken_json_is_a_400(api, path, body):
    response = await api.post(path, body)
    error = response.json()["error"]
    check_error(response, 400, error["param"])
    assert error["param"] in (None, "model", "messages", "tools", "prompt")


async def test_a_field_of_the_wrong_type_is_named(api):
    wrong = {
        "model": 3,
        "n": "1",
        "n ": None,
        "temperature": "hot",
        "max_tokens": 1.5,
        "stream": 1,
        "stop": [1],
        "seed": 1.5,
        "stop_token_ids": ["x"],
        "logprobs": {},
        "stream_options": [],
        "request_id": 5,
    }
    for name, value in wrong.items():
        if value is not None:
            response = await api.chat(**{name: value})
            check_error(response, 400, response.json()["error"]["param"])
            assert response.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("name", ["fake-mode", "", "../../etc/passwd", "x" * 10_000])
async def test_another_model_does_not_exist(api, name):
    for response in (await api.chat(model=name), await api.complete(model=name)):
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_found")
        assert error["message"] == f"The model `{name[:256]}` does not exist."


NOT_DEFAULT = {
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"],
    "detokenize": False,
    "echo": True,
    "include_reasoning": False,
    "spaces_between_special_tokens": False,
    "return_tokens_as_token_ids": True,
    "suffix": "end",
    "early_stopping": True,
}


@pytest.mark.parametrize(
    ("path", "name"),
    [("chat", name) for name in {**GENERATION, **CHAT} if name != "parallel_tool_calls"]
    + [("completions", name) for name in {**GENERATION, **COMPLETIONS}],
)
async def test_a_field_that_is_not_served_is_named_and_its_default_is_taken(api, path, name):
    post = api.chat if path == "chat" else api.complete
    defaults = {**GENERATION, **(CHAT if path == "chat" else COMPLETIONS)}[name]
    message = check_error(await post(**{name: NOT_DEFAULT.get(name, "something")}), 400, name)
    assert name in message
    assert not api.engine.calls
    for default in (None, *defaults):
        assert (await post(**{name: default})).status_code == 200


async def test_one_is_not_true_and_a_float_zero_is_zero(api):
    check_error(await api.chat(use_beam_search=0), 400, "use_beam_search")
    check_error(await api.chat(repetition_penalty=True), 400, "repetition_penalty")
    assert (await api.chat(presence_penalty=-0.0, frequency_penalty=0.0, repetition_penalty=1.0)).status_code == 200


async def test_tools(api):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for choice in (None, "auto", "required", {"type": "function", "function": {"name": "f"}}):
        assert (await api.chat(tools=[tool], tool_choice=choice)).status_code == 200
    check_error(await api.chat(functions=[tool["function"]]), 400, "functions")
    for fields in (
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"tools": None, "tool_choice": None},
    ):
        assert (await api.chat(**fields)).status_code == 200


async def test_the_accept_and_ignore_list_stays_accepted(api):
    fields = {
        "user": "u",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "safety_identifier": "s",
        "prompt_cache_key": "key",
        "parallel_tool_calls": True,
        "something_new": {"deep": [1]},
    }
    assert (await api.chat(**fields)).status_code == 200
    assert (await api.complete(**fields)).status_code == 200
    assert [(call.cache_salt, call.tenant) for call in api.engine.calls] == [("key", "u"), ("key", "u")]
    await api.chat(prompt_cache_key="key", cache_salt="salt")
    assert api.engine.calls[-1].cache_salt == "salt"


@pytest.mark.parametrize(
    ("error", "status", "kind", "words"),
    [
        (EngineDeadError("exit -9: /usr/lib/x.py"), 503, "engine_error", "The engine is not running."),
        (EngineStepError("RuntimeError(<object at 0x7f00aabbccdd>)"), 500, "engine_error", None),
        (OverloadedError("Too many requests wait."), 503, "overloaded_error", "Too many requests wait."),
        (ModelError("The file /models/x is broken."), 500, "internal_error", None),
        (MemoryBudgetError("cat /proc/self"), 500, "internal_error", None),
        (ZeroDivisionError("/secret/path.py"), 500, "internal_error", None),
    ],
)
async def test_what_a_client_cannot_mend_is_told_without_details(error, status, kind, words):
    async with in_process(FakeEngine(script=Script(error=error))) as api:
        for response in (await api.chat(), await api.chat(stream=True), await api.complete()):
            message = check_error(response, status, kind=kind)
            assert words in (None, message)
            assert ("retry-after" in response.headers) == (status == 503)
            assert response.headers["x-request-id"]


async def test_a_request_that_kills_engines_is_told_so_and_clients_do_not_send_it_again():
    error = FatalRequestError("exit code 1: /usr/lib/x.py")
    async with in_process(FakeEngine(script=Script(error=error))) as api:
        for response in (await api.chat(), await api.chat(stream=True), await api.complete()):
            message = check_error(response, 500, kind="engine_error", code="request_kills_engine")
            assert "do not send it again" in message
            assert response.headers["x-should-retry"] == "false"


async def test_unknown_routes_and_methods(api):
    check_error(await api.client.get("/v1/nothing"), 404, code="unknown_url")
    check_error(await api.client.get("/v1/models/none"), 404, "model", "model_not_found")
    assert (await api.client.get("/v1/models/")).json() == (await api.client.get("/v1/models")).json()
    check_error(await api.post("/v1/chat/completions/", {}), 404, code="unknown_url")
    response = await api.client.get("/v1/completions")
    check_error(response, 405)
    assert response.headers["allow"] == "POST"
    check_error(await api.post("/v1/models", {}), 405)
    check_error(await api.post("/health", {}), 405)
    check_error(await api.client.delete("/v1/completions"), 405)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
async def test_another_content_type_is_a_415(api, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    check_error(await api.client.post("/v1/completions", content=b"{}", headers=headers), 415)


async def test_json_with_a_charset_is_json(api):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = json.dumps({"model": "fake-model", "prompt": "x"})
    assert (await api.client.post("/v1/completions", content=body, headers=headers)).status_code == 200


NUMBERS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "priority", "stop_token_ids"),
    *("top_logprobs", "logprobs", "max_completion_tokens", "presence_penalty", "frequency_penalty", "best_of"),
)
# As they stand in the JSON.
VALUES = st.one_of(
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "true", "false", '"1"', "null", "-0", "-0.0", "1e308", "1e309", "[]"]
    ),
    st.sampled_from(
        ["1e-320", "{}", "[NaN]", "[true]", '["1"]', "[-1]", "[9223372036854775808]", "01", "1.", "+1", "0x10"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        [f"{sign}{2**power + offset}" for sign in ("", "-") for power in (7, 31, 32, 63, 64) for offset in (-1, 0, 1)]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)


@given(name=st.sampled_from(NUMBERS), value=VALUES, chat=st.booleans(), stream=st.booleans())
async def test_any_number_is_taken_or_refused_by_name(name, value, chat, stream):
    engine = FakeEngine()
    content = '"messages":[{"role":"user","content":"x"}],"logprobs":true' if chat else '"prompt":"x"'
    if name == "logprobs" and chat:
        content = content.replace(',"logprobs":true', "")
    body = f'{{"model":"fake-model",{content},"stream":{str(stream).lower()},"{name}":{value}}}'
    async with in_process(engine) as api:
        response = await api.post("/v1/chat/completions" if chat else "/v1/completions", body.encode())
    if response.status_code == 200:
        call = engine.calls[0]
        assert 0 <= call.params.temperature < float("inf")
        assert 1 <= call.params.n <= 128
        assert value not in ("NaN", "Infinity", "-Infinity", "true", '"1"') or name == "logprobs"
    else:
        error = response.json()["error"]
        check_error(response, 400, error["param"], error["code"])
        assert error["param"] is None or error["param"].startswith((name, "min_tokens", "prompt", "top_logprobs"))
        assert not engine.running
