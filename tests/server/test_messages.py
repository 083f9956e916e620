"""Anthropic's Messages API, by its own client and by hand."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import ModelInfo

from tessera.errors import EngineStepError
from tessera.server.settings import AnswerLimits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine, Script
from tests.server.spoken_engine import SpokenEngine

USER = {"role": "user", "content": "Weather?"}
WEATHER = {
    "name": "weather",
    "description": "W",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALLS = (
    'Hm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
THINKING = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")
KEYED = ServerSettings(api_keys=("secret",))


def engine(said: str = "Hello.", **script: Any) -> FakeEngine:
    return FakeEngine(script=Script(pieces=said, **script))


def client_of(server: Any, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(**{"base_url": server.url, "api_key": "any", "max_retries": 0, **options})


async def test_a_client_gets_a_message():
    async with on_socket(engine(num_cached_tokens=3)) as server, client_of(server) as client:
        message = await client.messages.create(
            model=MODEL, max_tokens=50, messages=[USER], system="Be brief.", stop_sequences=["X"],
            extra_body={"temperature": 0.5},
        )  # fmt: skip
        assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
        assert [(block.type, block.text) for block in message.content] == [("text", "Hello.")]
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        call = server.engine.calls[0]
        assert (
            server.engine.tokenizer.decode(call.prompt) == "<system>Be brief.</system><user>Weather?</user><assistant>"
        )
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(call.prompt)
        assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 6)
        assert (call.params.max_tokens, call.params.temperature, call.params.stop) == (50, 0.5, ("X",))


async def test_blocks_come_whole():
    async with on_socket(engine(CALLS), THINKING) as server, client_of(server) as client:
        message = await client.messages.create(model=MODEL, max_tokens=400, messages=[USER], tools=[WEATHER])
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert message.content[0].thinking == "Hm."
        assert message.content[1].text == "Let me see."
        assert [(block.name, block.input) for block in message.content[2:]] == [
            ("weather", {"city": "Paris"}), ("weather", {"city": "Rome"}),
        ]  # fmt: skip
        assert message.stop_reason == "tool_use"


async def test_blocks_come_piece_by_piece():
    async with on_socket(engine(CALLS), THINKING) as server, client_of(server) as client:
        asked = {"model": MODEL, "max_tokens": 400, "messages": [USER], "tools": [WEATHER]}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert [block.model_dump(exclude={"id"}) for block in final.content] == [
            block.model_dump(exclude={"id"}) for block in whole.content
        ]
        assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
        assert kinds[0] == "message_start"
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
        assert kinds[-1] == "message_stop"


async def test_events_are_named_and_in_order():
    async with in_process(engine("Hi.")) as api:
        response = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [USER], "stream": True})
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [block.split("\n") for block in response.text.removesuffix("\n\n").split("\n\n")]
        names = [name.removeprefix("event: ") for name, _ in events]
        data = [json.loads(line.removeprefix("data: ")) for _, line in events]
        assert names == [each["type"] for each in data]
        assert names[:2] == ["message_start", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert data[0]["message"]["content"] == []
        assert data[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
        assert data[-2]["usage"]["output_tokens"] == 3


async def test_a_chat_with_results_of_tools_is_what_the_template_gets():
    past = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "See:"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"x": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Sunny"}]},
                {"type": "text", "text": "Thanks"},
            ],
        },
    ]
    async with in_process(engine(), THINKING) as api:
        response = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": past})
        assert response.status_code == 200
        assert api.engine.tokenizer.decode(api.engine.calls[0].prompt) == (
            "<user>Weather?</user><assistant>See:[weather Paris]</assistant><tool>Sunny</tool><user>Thanks</user>"
            "<assistant>"
        )


@pytest.mark.parametrize("kind", ["image", "document"])
async def test_what_a_tool_returns_that_is_no_text_is_named_to_the_model(kind):
    past = [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {"x": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": kind}]}]},
    ]
    async with in_process(engine()) as api:
        assert (await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": past})).status_code == 200
        prompt = api.engine.tokenizer.decode(api.engine.calls[0].prompt)
        assert f"{kind}, which this model cannot see]</tool>" in prompt


async def test_the_application_speaks_later_too():
    later = [USER, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    async with in_process(engine()) as api:
        assert (await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": later})).status_code == 200
        prompt = api.engine.tokenizer.decode(api.engine.calls[0].prompt)
        assert prompt == "<user>Weather?</user><system>Be brief.</system><assistant>"


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ({"type": "any"}, "tags_with_separator"),
        ({"type": "tool", "name": "weather"}, "tags_with_separator"),
        ({"type": "auto"}, None),
    ],
)
async def test_a_choice_of_tools(choice, kind):
    async with in_process(engine(CALLS), THINKING) as api:
        body = {"model": MODEL, "max_tokens": 400, "messages": [USER], "tools": [WEATHER], "tool_choice": choice}
        message = (await api.post("/v1/messages", body)).json()
        assert message["stop_reason"] == "tool_use"
        asked = api.engine.calls[0].params.structured_outputs
        assert (None if asked is None else json.loads(asked.structural_tag)["format"]["type"]) == kind


async def test_no_tool_may_be_called_if_none_is_chosen():
    async with in_process(engine(CALLS), THINKING) as api:
        body = {
            "model": MODEL,
            "max_tokens": 400,
            "messages": [USER],
            "tools": [WEATHER],
            "tool_choice": {"type": "none"},
        }
        message = (await api.post("/v1/messages", body)).json()
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert message["stop_reason"] == "end_turn"


async def test_thinking_is_limited_or_not():
    async with in_process(engine(CALLS), THINKING) as api:
        for thinking, budget in (({"type": "enabled", "budget_tokens": 1024}, 1024), ({"type": "disabled"}, None)):
            await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [USER], "thinking": thinking})
            assert api.engine.calls[-1].params.thinking_token_budget == budget
    async with in_process(engine()) as api:  # a model without any
        body = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [USER],
            "thinking": {"type": "enabled", "budget_tokens": 9},
        }
        assert (await api.post("/v1/messages", body)).status_code == 200


async def test_an_answer_may_have_a_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    async with in_process(engine('{"a": 1}')) as api:
        for asked in ({"output_config": {"format": form}}, {"output_format": form}):
            body = {"model": MODEL, "max_tokens": 9, "messages": [USER], **asked}
            assert (await api.post("/v1/messages", body)).status_code == 200
            assert json.loads(api.engine.calls[-1].params.structured_outputs.json) == schema
        for strict in ({}, {"strict": False}):
            body["output_config"] = {"format": {"type": "json_schema", "schema": EITHER, **strict}}
            assert (await api.post("/v1/messages", body)).status_code == 200


@pytest.mark.parametrize(
    ("said", "script", "reason", "sequence"),
    [
        ("Hello.", {"stop_reason": "X"}, "stop_sequence", "X"),
        ("Hello.", {"stop_reason": 5}, "end_turn", None),
        ("x" * 99, {}, "max_tokens", None),
    ],
)
async def test_why_it_stopped(said, script, reason, sequence):
    async with in_process(engine(said, **script)) as api:
        body = {"model": MODEL, "max_tokens": 20, "messages": [USER]}
        message = (await api.post("/v1/messages", body)).json()
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


async def test_more_tokens_than_there_is_room_for_are_cut():
    async with in_process(engine()) as api:
        await api.post("/v1/messages", {"model": MODEL, "max_tokens": 32_000, "messages": [USER]})
        call = api.engine.calls[0]
        assert call.params.max_tokens == MAX_MODEL_LEN - len(call.prompt)


async def test_tokens_are_counted():
    async with on_socket(engine(), THINKING) as server, client_of(server) as client:
        count = await client.messages.count_tokens(model=MODEL, messages=[USER], system="Be brief.", tools=[WEATHER])
        await client.messages.create(model=MODEL, max_tokens=9, messages=[USER], system="Be brief.", tools=[WEATHER])
        assert count.input_tokens == len(server.engine.calls[0].prompt)


EITHER = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "multipleOf": 3}]}
"""Alternatives that may hold together."""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages must have at least one message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be user, assistant or system"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0] is of the type image"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0] is no block"),
    ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0] is not a tool with an input_schema"),
    ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice.type must be auto, any, none"),
    ({"output_format": {"type": "xml"}}, "output_format must have the type json_schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": EITHER, "strict": True}}},
     "output_config.format.schema.oneOf cannot be used: its schemas must exclude one another"),
    ({"mcp_servers": [{}]}, "mcp_servers is not supported yet"),
    ({"temperature": "hot"}, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_said_in_anthropic_s_format(fields, reason):
    async with in_process(engine(), THINKING) as api:
        body = {"model": MODEL, "max_tokens": 9, "messages": [USER], **fields}
        response = await api.post("/v1/messages", body)
        assert response.status_code == 400
        error = response.json()
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert reason in error["error"]["message"]
        assert not api.engine.calls


async def test_errors_become_the_client_s_own():
    async with on_socket(engine(), KEYED) as server:
        async with client_of(server) as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model=MODEL, max_tokens=9, messages=[USER])
        async with client_of(server, api_key="secret") as client:
            await client.messages.create(model=MODEL, max_tokens=9, messages=[USER])
            with pytest.raises(anthropic.NotFoundError, match="does not exist"):
                await client.messages.create(model="other", max_tokens=9, messages=[USER])
            with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
                await client.messages.create(
                    model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x" * 999}]
                )
        async with httpx.AsyncClient(base_url=server.url) as plain:
            response = await plain.get("/v1/messages", headers={"x-api-key": "secret"})
            assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_an_error_in_a_stream_is_an_event():
    async with in_process(engine(error=EngineStepError("x"), error_at=2)) as api:
        response = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [USER], "stream": True})
        assert response.status_code == 200
        last = response.text.removesuffix("\n\n").split("\n\n")[-1]
        assert last.startswith("event: error\ndata: ")
        assert json.loads(last.split("data: ")[1])["error"]["type"] == "api_error"


# ---- models ----------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "org/c")


async def test_models_come_in_pages():
    settings = ServerSettings(served_model_names=NAMES, answers=AnswerLimits(maximum=50))
    async with on_socket(engine(), settings) as server, client_of(server) as client:
        assert tuple([model.id async for model in client.models.list(limit=2)]) == NAMES
        last = await client.models.list(before_id="org/c", limit=1)
        assert ([model.id for model in last.data], last.has_more, last.first_id, last.last_id) == (
            ["b"],
            True,
            "b",
            "b",
        )
        first = await client.models.list(before_id="b", lifecycle=["active"])
        assert ([model.id for model in first.data], first.has_more) == (["a"], False)
        assert (await client.models.list(lifecycle=["retired"])).data == []
        model = await client.models.retrieve("org/c")
        ModelInfo.model_validate(model.model_dump(), strict=True)
        assert (model.display_name, model.max_input_tokens, model.max_tokens) == ("org/c", MAX_MODEL_LEN, 50)


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/v1/models/other", 404, "does not exist"),
        ("/v1/models?after_id=other", 404, "no model with the id in after_id"),
        ("/v1/models?after_id=a&before_id=b", 400, "cannot be combined"),
        ("/v1/models?limit=0", 400, "limit must be 1 to 1000"),
    ],
)
async def test_errors_of_models_have_the_form_that_the_client_knows(path, status, reason):
    async with in_process(engine(), ServerSettings(served_model_names=NAMES)) as api:
        response = await api.client.get(path, headers={"anthropic-version": "2023-06-01"})
        assert response.status_code == status
        assert response.json()["type"] == "error"
        assert reason in response.json()["error"]["message"]
        assert (await api.client.get("/v1/models")).json()["object"] == "list"


async def test_blocks_are_in_the_order_in_which_they_were_written():
    calls = [f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in ("now", "then")]
    said = f"why</think>pre {calls[0]} mid {calls[1]} post"
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("now", "then")]
    async with in_process(SpokenEngine(said), THINKING) as api:
        asked = {"model": MODEL, "max_tokens": 400, "messages": [USER], "tools": tools}
        content = (await api.post("/v1/messages", asked)).json()["content"]
    shown = [block.get("name") or block.get("thinking") or block.get("text") for block in content]
    assert shown == ["why", "pre", "now", "mid", "then", "post"]


# ---- the last message is the assistant's -----------------------------------------------------------------------------

JOINED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UPPER = JOINED.replace("{{ m.content }}", "{{ m.content | upper }}")


@pytest.mark.parametrize(
    "said", ["The answer is", [{"type": "text", "text": "The answer"}, {"type": "text", "text": " is"}]]
)
async def test_the_last_message_of_the_assistant_is_continued(said):
    asked = {"model": MODEL, "messages": [USER, {"role": "assistant", "content": said}]}
    fake = FakeEngine(script=Script(pieces=" 5."), template=JOINED)
    async with in_process(fake) as api:
        answer = (await api.post("/v1/messages", {**asked, "max_tokens": 9})).json()
        counted = (await api.post("/v1/messages/count_tokens", asked)).json()
        prompt = api.engine.tokenizer.decode(api.engine.calls[0].prompt)
    assert prompt == f"<user>{USER['content']}</><assistant>The answer is"
    assert counted["input_tokens"] == len(api.engine.calls[0].prompt)
    assert answer["content"] == [{"type": "text", "text": " 5."}]


async def test_an_answer_that_cannot_go_on_from_the_last_message_is_refused():
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    async with in_process(FakeEngine(template=JOINED)) as api:
        for content in (
            "So ",
            "So\n",
            [{"type": "text", "text": "So "}],
            [call],
            [{"type": "thinking", "thinking": "hm"}],
        ):
            last = {"role": "assistant", "content": content}
            body = {"model": MODEL, "max_tokens": 9, "messages": [USER, last]}
            error = (await api.post("/v1/messages", body)).json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith("messages[1]")
    async with in_process(FakeEngine(template=UPPER)) as api:
        body = {"model": MODEL, "max_tokens": 9, "messages": [USER, {"role": "assistant", "content": "So"}]}
        response = await api.post("/v1/messages", body)
        assert (response.status_code, "cannot be continued" in response.json()["error"]["message"]) == (400, True)


async def test_an_empty_last_message_is_an_answer_that_has_not_begun():
    async with in_process(FakeEngine(template=JOINED)) as api:
        for content in ("", []):
            body = {"model": MODEL, "max_tokens": 9, "messages": [USER, {"role": "assistant", "content": content}]}
            assert (await api.post("/v1/messages", body)).status_code == 200
            assert api.engine.tokenizer.decode(api.engine.calls[-1].prompt).endswith("</><assistant>")


async def test_the_id_of_a_request_is_where_the_client_reads_it():
    async with on_socket(engine()) as server, client_of(server) as client:
        message = await client.messages.create(model=MODEL, max_tokens=9, messages=[USER])
        assert message._request_id
        assert message.id == f"msg-{message._request_id}"
        async with client.messages.stream(model=MODEL, max_tokens=9, messages=[USER]) as stream:
            assert stream.request_id
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(model=MODEL, max_tokens=0, messages=[USER])
        assert refused.value.request_id
