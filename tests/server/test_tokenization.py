"""/tokenize and /detokenize, with vLLM's fields."""

from __future__ import annotations

import json

import pytest

from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, TEMPLATE, FakeEngine, byte_tokenizer
from tests.server.test_errors import check_error

BOS = 256
MESSAGES = [{"role": "user", "content": "Hi"}]


def ids(text, add_special_tokens=False):
    return byte_tokenizer().encode(text, add_special_tokens)


async def tokenized(api, **fields):
    response = await api.post("/tokenize", fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_prompt_gets_the_special_tokens_that_a_completion_gets(api):
    answer = await tokenized(api, model=MODEL, prompt="Hä")
    assert answer == {"count": 4, "max_model_len": MAX_MODEL_LEN, "tokens": [BOS, *ids("Hä")], "token_strs": None}
    assert (await tokenized(api, prompt="Hä", add_special_tokens=False))["tokens"] == ids("Hä")
    await api.complete(prompt="Hä")
    assert api.engine.calls[-1].prompt == answer["tokens"]


async def test_token_strs_are_the_vocabulary_s_own(api):
    answer = await tokenized(api, prompt="a b", return_token_strs=True)
    assert answer["token_strs"] == ["<bos>", "a", "Ġ", "b"]


async def test_an_empty_prompt_is_its_special_tokens(api):
    assert (await tokenized(api, prompt=""))["tokens"] == [BOS]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "<user>Hi</user><assistant>"),
        ({"add_generation_prompt": False}, "<user>Hi</user>"),
        ({"continue_final_message": True}, "<user>Hi"),
        ({"chat_template_kwargs": {"mood": "glad"}}, "<user>Hi</user>(glad)<assistant>"),
    ],
)
async def test_a_chat_becomes_the_prompt_that_chat_completions_make_of_it(api, fields, text):
    answer = await tokenized(api, model=MODEL, messages=MESSAGES, **fields)
    assert answer["tokens"] == ids(text)
    await api.chat(**fields)
    assert api.engine.calls[-1].prompt == answer["tokens"]
    special = await tokenized(api, messages=MESSAGES, add_special_tokens=True, **fields)
    assert special["tokens"] == [BOS, *ids(text)]


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
CUSTOM = {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}}
HISTORY = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Fix"}, {"type": "text", "text": "it"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "main.py"},
    {"role": "assistant", "content": "Done"},
]
CHATS = [
    {"messages": messages, **fields}
    for messages in (MESSAGES, HISTORY)
    for fields in (
        {},
        {"tools": TOOLS},
        {"tools": [*TOOLS, CUSTOM], "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [], "add_special_tokens": True},
        {"tools": TOOLS, "chat_template_kwargs": {"mood": "glad"}},
        {"tools": TOOLS, "continue_final_message": True},
        {"add_generation_prompt": False, "chat_template_kwargs": {"mood": "glad"}},
        {"reasoning_effort": "low", "verbosity": "high"},
        {"reasoning_effort": "none", "tools": TOOLS},
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
    )
]
SHOWS_ALL = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}"
    "{{ reasoning_effort }}{{ verbosity }}{{ enable_thinking }}" + TEMPLATE
)


async def test_a_chat_has_as_many_tokens_as_it_is_said_to_have():
    async with in_process(FakeEngine(template=SHOWS_ALL), ServerSettings(tool_call_parser="hermes")) as api:
        api.engine.info.max_model_len = 4096
        counts = set()
        for chat in CHATS:
            answer = await api.post("/v1/chat/completions", {"model": MODEL, "max_tokens": 1, **chat})
            assert answer.status_code == 200, (chat, answer.text)
            count = (await tokenized(api, **chat))["count"]
            assert count == answer.json()["usage"]["prompt_tokens"], chat
            assert count == len(api.engine.calls[-1].prompt)
            counts.add(count)
        assert len(counts) > len(CHATS) // 2


async def test_a_text_longer_than_the_context_is_counted(api):
    assert (await tokenized(api, prompt="x" * 5000))["count"] == 5001


async def test_detokenize_takes_back_what_tokenize_did(api):
    tokens = (await tokenized(api, prompt="wörld 🦊"))["tokens"]
    response = await api.post("/detokenize", {"model": MODEL, "tokens": tokens})
    assert response.json() == {"prompt": "<bos>wörld 🦊"}
    assert (await api.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ x }}"}, "chat_template"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools[0].type"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"messages": MESSAGES, "tool_choice": "any"}, "tool_choice"),
        ("/tokenize", {"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ("/tokenize", {"messages": MESSAGES, "documents": [{"text": "x"}]}, "documents"),
        ("/tokenize", {"messages": MESSAGES, "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{"type": "x" * 2**20}]}, "tools"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"x": "y" * 2**16}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": MESSAGES * 2049}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [2**63]}, "tokens"),
        ("/detokenize", {"tokens": [0] * (2**20 + 1)}, "tokens"),
    ],
    ids=range(24),
)
async def test_what_does_not_hold_is_named(api, path, body, param):
    check_error(await api.post(path, body), 400, param)


async def test_a_chat_that_both_starts_and_goes_on_an_answer_is_refused(api):
    body = {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True}
    check_error(await api.post("/tokenize", body), 400, "add_generation_prompt")


async def test_half_a_surrogate_pair_is_refused(api):
    check_error(await api.post("/tokenize", b'{"prompt": "\\ud800"}'), 400, None)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_does_not_exist(api, path):
    body = {"model": "other", "prompt": "a", "tokens": [1]}
    check_error(await api.post(path, body), 404, "model", "model_not_found")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_without_a_tokenizer_there_is_nothing_to_ask(path):
    async with in_process(FakeEngine(tokenizer=None)) as api:
        check_error(await api.post(path, {"prompt": "a", "tokens": [1]}), 400)


async def test_a_prompt_has_its_limit():
    async with in_process(FakeEngine(), ServerSettings(limits=Limits(prompt_chars=100))) as api:
        check_error(await api.post("/tokenize", {"prompt": "x" * 101}), 400, "prompt")
        chat = [{"role": "user", "content": "x" * 100}]
        check_error(await api.post("/tokenize", {"messages": chat}), 400, "messages")


async def test_the_engine_need_not_live_for_it(api):
    api.engine.health.alive = False
    assert (await tokenized(api, prompt="a"))["count"] == 2


async def test_only_posts_are_taken(api):
    response = await api.client.get("/tokenize")
    check_error(response, 405)
    assert response.headers["allow"] == "POST"
    assert json.loads(response.content)
