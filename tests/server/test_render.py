"""/v1/completions/render and /v1/chat/completions/render: what routers look prompts up by, with vLLM's fields."""

from __future__ import annotations

import pytest

from tests.server.fake_engine import MODEL, byte_tokenizer
from tests.server.test_errors import check_error

BOS = 256
MESSAGES = [{"role": "user", "content": "Hi"}]


def ids(text):
    return byte_tokenizer().encode(text, add_special_tokens=False)


async def rendered(api, path, **fields):
    response = await api.post(path, fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_chat_is_rendered_as_it_is_answered(api):
    fields = {"messages": MESSAGES, "temperature": 0.5, "max_tokens": 3, "cache_salt": "s", "priority": 2}
    answer = await rendered(api, "/v1/chat/completions/render", model=MODEL, request_id="a-name", **fields)
    assert api.engine.calls == [], "nothing is generated"
    assert answer == {
        "request_id": "chatcmpl-a-name",
        "token_ids": ids("<user>Hi</user><assistant>"),
        "features": None,
        "sampling_params": {"temperature": 0.5, "max_tokens": 3},
        "model": MODEL,
        "stream": False,
        "cache_salt": "s",
        "priority": 2,
    }
    await api.chat(**fields)
    assert api.engine.calls[-1].prompt == answer["token_ids"]


async def test_each_prompt_of_a_completion_is_rendered(api):
    first, second = await rendered(api, "/v1/completions/render", prompt=["Hä", "b"], stop="x", top_k=4)
    assert (first["token_ids"], second["token_ids"]) == ([BOS, *ids("Hä")], [BOS, *ids("b")])
    assert first["sampling_params"] == {"top_k": 4, "max_tokens": 16, "stop": ["x"]}
    assert first["request_id"].startswith("cmpl-")
    assert first["request_id"] != second["request_id"]
    (ready,) = await rendered(api, "/v1/completions/render", prompt=[5, 6, 7], add_special_tokens=False)
    assert ready["token_ids"] == [5, 6, 7]
    assert api.engine.calls == []


@pytest.mark.parametrize("path", ["/v1/completions/render", "/v1/chat/completions/render"])
async def test_what_would_not_be_answered_is_not_rendered(api, path):
    fields = {"prompt": "a"} if path == "/v1/completions/render" else {"messages": MESSAGES}
    check_error(await api.post(path, {**fields, "temperature": -1}), 400, param="temperature")
    check_error(await api.post(path, {**fields, "model": "x"}), 404, "model", "model_not_found")
    check_error(await api.post(path, {**fields, "max_tokens": 0}), 400, "max_tokens")
