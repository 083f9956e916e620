"""POST /v1/chat/completions, whole answers."""

from __future__ import annotations

import logging

import pytest
from openai.types.chat import ChatCompletion

from tessera.sampling_params import RequestOutputKind
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script

USER = {"role": "user", "content": "Hi"}


def rendered(engine):
    return engine.tokenizer.decode(engine.calls[-1].prompt)


async def answered(api, **fields):
    response = await api.chat(**fields)
    assert response.status_code == 200, response.text
    return ChatCompletion.model_validate(response.json(), strict=True)


async def test_answer_has_what_openai_s_type_asks_for(api):
    answer = await answered(api)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "fake-model"
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "Hello, wörld!")
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None


async def test_the_template_makes_the_prompt_and_adds_its_own_special_tokens(api):
    await answered(api, messages=[{"role": "system", "content": "Be kind."}, USER])
    assert rendered(api.engine) == "<system>Be kind.</system><user>Hi</user><assistant>"
    bos = api.engine.tokenizer.bos_token_id
    assert bos not in api.engine.calls[-1].prompt
    await answered(api, add_special_tokens=True)
    assert api.engine.calls[-1].prompt[0] == bos


async def test_usage_counts_prompt_answer_and_cached_tokens():
    async with in_process(FakeEngine(script=Script(num_cached_tokens=7))) as api:
        answer = await answered(api, n=2)
    prompt = len(api.engine.calls[0].prompt)
    assert answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == 10
    assert answer.usage.total_tokens == prompt + 10
    assert answer.usage.prompt_tokens_details.cached_tokens == 7


async def test_n_answers_come_in_order(api):
    answer = await answered(api, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(api.engine.calls) == 1
    assert api.engine.calls[0].params.n == 3


async def test_every_sampling_field_reaches_the_engine(api):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 2**62,
        "stop": ["END", "STOP"],
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "max_tokens": 9,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    await answered(api, **fields, priority=-3, cache_salt="tenant")
    call = api.engine.calls[0]
    sent = {name: getattr(call.params, name) for name in fields}
    assert sent == {**fields, "stop": ("END", "STOP"), "stop_token_ids": (3, 4)}
    assert (call.priority, call.cache_salt) == (-3, "tenant")
    assert call.params.output_kind is RequestOutputKind.FINAL_ONLY


async def test_absent_and_null_fields_take_defaults_and_fill_the_context(api):
    names = ("temperature", "top_p", "n", "stop", "max_tokens", "seed", "logprobs", "stream", "stream_options", "tools")
    await answered(api, **dict.fromkeys(names))
    await answered(api)
    with_nulls, without = (call.params for call in api.engine.calls)
    assert with_nulls == without
    assert without.max_tokens is None
    assert without.temperature == 1.0


async def test_generation_config_fills_in_what_a_request_leaves_open():
    settings = ServerSettings(default_sampling={"temperature": 0.25, "top_k": 7})
    async with in_process(FakeEngine(), settings) as api:
        await answered(api, top_k=3)
    assert api.engine.calls[0].params.temperature == 0.25
    assert api.engine.calls[0].params.top_k == 3


async def test_max_completion_tokens_wins(api):
    answer = await answered(api, max_tokens=1, max_completion_tokens=2)
    assert api.engine.calls[0].params.max_tokens == 2
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "Hello"


async def test_logprobs(api):
    answer = await answered(api, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["Hel", "lo", ", ", "wörld", "!"]
    assert content[0].logprob == -1.5
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("a", -0.5), ("Hel", -1.5)]
    token_bytes = api.engine.tokenizer.token_bytes
    assert content[1].bytes == list(token_bytes(1))
    assert content[1].top_logprobs[0].bytes == list(token_bytes(100))


async def test_logprobs_without_alternatives_are_empty_lists(api):
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        answer = await answered(api, **fields)
        assert all(entry.top_logprobs == [] for entry in answer.choices[0].logprobs.content)
    answer = await answered(api, logprobs=False, top_logprobs=0)
    assert answer.choices[0].logprobs is None


async def test_an_impossible_alternative_has_a_finite_logprob(api):
    answer = await answered(api, logprobs=True, top_logprobs=3)
    assert answer.choices[0].logprobs.content[0].top_logprobs[-1].logprob == -9999.0


async def test_stop_reason_is_told():
    async with in_process(FakeEngine(script=Script(stop_reason="END"))) as api:
        assert (await api.chat()).json()["choices"][0]["stop_reason"] == "END"


async def test_token_ids_come_only_when_asked_for(api):
    assert (await api.chat(return_token_ids=True)).json()["choices"][0]["token_ids"] == [0, 1, 2, 3, 4]
    assert "token_ids" not in (await api.chat()).json()["choices"][0]


async def test_request_id_names_the_answer_and_may_be_repeated(api):
    first, second = (await api.chat(request_id="mine-1")).json(), (await api.chat(request_id="mine-1")).json()
    assert first["id"] == second["id"] == "chatcmpl-mine-1"
    names = [call.request_id for call in api.engine.calls]
    assert len(set(names)) == 2
    assert all(name.startswith("chatcmpl-mine-1-") for name in names)


async def test_the_header_names_the_answer_before_the_body_does(api, caplog):
    caplog.set_level(logging.INFO, "tessera.server.access")
    body = {"model": MODEL, "messages": [USER]}
    for given, own, expected in (
        ("rid", None, "rid"),
        ("rid", "mine", "rid"),
        (None, "mine", "mine"),
        ("a b", "m", "m"),
    ):
        headers = {} if given is None else {"X-Request-Id": given}
        response = await api.client.post("/v1/chat/completions", json={**body, "request_id": own}, headers=headers)
        assert response.json()["id"] == f"chatcmpl-{expected}"
        assert response.headers["x-request-id"] == caplog.records[-1].request_id == expected
        assert api.engine.calls[-1].request_id.startswith(f"chatcmpl-{expected}-")


async def test_an_answer_without_a_name_has_that_of_its_head(api):
    for response in (await api.chat(), await api.chat(stream=True)):
        assert f'"id":"chatcmpl-{response.headers["x-request-id"]}"' in response.text


async def test_text_parts_and_the_developer_role(api):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await answered(api, messages=[{"role": "developer", "content": "D"}, {"role": "user", "content": parts}])
    assert rendered(api.engine) == "<system>D</system><user>one\ntwo</user><assistant>"


async def test_a_conversation_with_tool_calls_is_rendered(api):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 3}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    await answered(api, messages=messages)
    assert rendered(api.engine) == "<user>Hi</user><assistant>[add 3]</assistant><tool>4</tool><assistant>"


async def test_tools_that_may_not_be_called_are_not_shown_to_the_model(api):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    await answered(api, tools=[tool], tool_choice="none")
    assert "TOOLS" not in rendered(api.engine)


async def test_continue_final_message(api):
    messages = [USER, {"role": "assistant", "content": "Sure, "}]
    await answered(api, messages=messages, continue_final_message=True)
    assert rendered(api.engine) == "<user>Hi</user><assistant>Sure, "


async def test_add_generation_prompt_off(api):
    await answered(api, add_generation_prompt=False)
    assert rendered(api.engine) == "<user>Hi</user>"


async def test_template_kwargs_reach_the_template_and_reserved_ones_are_refused(api):
    await answered(api, chat_template_kwargs={"mood": "merry"})
    assert "(merry)" in rendered(api.engine)
    for name in ("tokenize", "messages", "chat_template", "raise_exception"):
        response = await api.chat(chat_template_kwargs={name: True})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "chat_template_kwargs"


async def test_a_template_given_at_the_start_replaces_the_model_s():
    engine = FakeEngine(template="only {{ messages | length }}")
    async with in_process(engine) as api:
        await answered(api)
    assert rendered(engine) == "only 1"


async def test_what_a_template_refuses_is_a_400_in_its_words():
    async with in_process(FakeEngine(template="{{ raise_exception('Roles must alternate.') }}")) as api:
        response = await api.chat()
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Roles must alternate."


async def test_without_a_tokenizer_a_chat_is_refused():
    async with in_process(FakeEngine(tokenizer=None)) as api:
        response = await api.chat()
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        ([{"content": "x"}], "messages[0].role"),
        ([USER, {"role": "x" * 65, "content": "x"}], "messages[1].role"),
        ([USER, {"role": "", "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": [{"type": "refusal"}]}], "messages[0].content[0].refusal"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}],
            "messages[0].content[0].type",
        ),
        ([USER, {"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[1].audio"),
        (
            [USER, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 1}}]}],
            "messages[1].tool_calls[0].function.name",
        ),
    ],
)
async def test_a_wrong_message_is_named_by_its_place(api, messages, param):
    response = await api.chat(messages=messages)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not api.engine.calls
