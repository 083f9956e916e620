"""Tools in chats: what the model is shown, what a grammar demands, and what a client gets, whole and as a stream."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tessera.sampling_params import ReasoningParams
from tessera.server.settings import ServerSettings
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.spoken_engine import SpokenEngine
from tests.server.sse import read_stream
from tests.server.test_errors import check_error
from tests.unit.text.test_json_schema import drawn

USER = {"role": "user", "content": "Weather?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "W", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
HERMES = ServerSettings(tool_call_parser="hermes")
THINKING = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")


def engine(said: str, **script: Any) -> FakeEngine:
    return FakeEngine(script=Script(pieces=said, **script))


async def test_a_client_gets_calls():
    async with on_socket(engine(CALLS), HERMES) as server, server.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[USER], tools=TOOLS)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        first, second = choice.message.tool_calls
        assert (first.type, first.function.name, first.function.arguments) == (
            "function",
            "weather",
            '{"city": "Paris"}',
        )
        assert (second.function.name, second.function.arguments) == ("now", "{}")
        assert len({first.id, second.id}) == 2
        assert server.engine.calls[0].params.structured_outputs is None


async def test_a_stream_gives_them_piece_by_piece():
    async with on_socket(engine(CALLS), HERMES) as server, server.openai() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=[USER], tools=TOOLS, stream=True)
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        assert "".join(delta.content or "" for delta in deltas) == "Let me see."
        for index, (name, arguments) in enumerate((("weather", '{"city": "Paris"}'), ("now", "{}"))):
            mine = [call for call in calls if call.index == index]
            assert [(call.id is not None, call.type, call.function.name) for call in mine[:1]] == [
                (True, "function", name)
            ]
            assert all(call.id is None and call.function.name is None for call in mine[1:])
            assert "".join(call.function.arguments or "" for call in mine) == arguments
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
        assert deltas[0].role == "assistant"
        async with client.chat.completions.stream(model=MODEL, messages=[USER], tools=TOOLS) as helper:
            final = await helper.get_final_completion()
        assert [call.function.name for call in final.choices[0].message.tool_calls] == ["weather", "now"]


async def test_each_choice_has_its_own_calls():
    async with in_process(engine(CALLS), HERMES) as api:
        body = (await api.chat(tools=TOOLS, n=3, temperature=1.0)).json()
        ids = [call["id"] for choice in body["choices"] for call in choice["message"]["tool_calls"]]
        assert len(set(ids)) == 6
        streamed = await api.chat(tools=TOOLS, n=3, temperature=1.0, stream=True)
        found: dict[int, list[str]] = {}
        for chunk in read_stream(streamed.text):
            for choice in chunk["choices"]:
                found.setdefault(choice["index"], []).extend(
                    call["id"] for call in choice["delta"].get("tool_calls", []) if "id" in call
                )
        assert sorted(found) == [0, 1, 2]
        assert len({call for calls in found.values() for call in calls}) == 6


def tag_of(api: Any) -> Any:
    asked = api.engine.calls[-1].params.structured_outputs
    return None if asked is None else json.loads(asked.structural_tag)["format"]


async def test_what_a_choice_demands():
    said = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    async with in_process(engine(said), HERMES) as api:
        named = {"type": "function", "function": {"name": "now"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
        for choice, names, several, reason in (
            ("required", ["weather", "now"], True, "tool_calls"),
            (named, ["now"], False, "stop"),
            (allowed, ["now"], True, "tool_calls"),
        ):
            body = (await api.chat(tools=TOOLS, tool_choice=choice)).json()
            tag = tag_of(api)
            assert [
                name for name in ("weather", "now") if any(f'"{name}"' in one["begin"] for one in tag["tags"])
            ] == names
            assert tag["stop_after_first"] is not several
            assert body["choices"][0]["finish_reason"] == reason
            assert body["choices"][0]["message"]["content"] is None
        await api.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        assert tag_of(api)["stop_after_first"] is True
        await api.chat(tools=TOOLS, parallel_tool_calls=False)
        assert (tag_of(api)["type"], tag_of(api)["stop_after_first"]) == ("triggered_tags", True)
        for free in ({"tool_choice": "auto"}, {}):
            await api.chat(tools=TOOLS, **free)
            assert tag_of(api) is None


async def test_strict_tools_are_enforced_where_the_model_chooses():
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    async with in_process(engine(CALLS), HERMES) as api:
        await api.chat(tools=[strict, NOW])
        assert tag_of(api)["type"] == "triggered_tags"
        wrong = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
        place = "tools[1].function.parameters.properties.a"
        tool = {"type": "function", "function": {"name": "x", "parameters": wrong, "strict": True}}
        message = check_error(await api.chat(tools=[NOW, tool]), 400, f"{place}.uniqueItems")
        assert message.startswith(f"{place}.uniqueItems cannot be used: only items of")
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        check_error(await api.chat(tools=[NOW, tool], tool_choice=choice), 400, f"{place}.uniqueItems")
        tool["function"]["strict"] = False
        assert (await api.chat(tools=[NOW, tool], tool_choice="required")).status_code == 200


LOOKS_AHEAD = {"type": "string", "pattern": "^(?!x).*$"}
UNENFORCEABLE = [
    LOOKS_AHEAD,
    {"$ref": "https://example.com/x.json"},
    {"type": "any"},
    {"type": "number", "minimum": 1e-7, "maximum": 1e22},
]


def tool_with(schema: Any, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"k": schema, "n": {"const": 1}}, "required": ["k", "n"]}
    return {"type": "function", "function": {"name": "x", "parameters": parameters, **more}}


@pytest.mark.parametrize("schema", UNENFORCEABLE, ids=range(4))
async def test_no_request_ends_for_what_a_tool_that_is_not_strict_demands(schema: Any):
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    several = [
        {"tools": [NOW, tool_with(schema)], "tool_choice": "required"},
        {"tools": [strict, tool_with(schema)]},
        {"tools": [tool_with(schema)], "parallel_tool_calls": False},
        {"tools": [tool_with(schema)], "response_format": {"type": "json_object"}},
    ]
    for family in ("hermes", "qwen3_coder", "pythonic", "gemma4", "openai"):
        async with in_process(engine("Hello."), ServerSettings(tool_call_parser=family)) as api:
            for fields in several:
                assert (await api.chat(**fields)).status_code == 200
                said = json.dumps(tag_of(api))
                assert '"const": 1' in said or (family, said) == ("pythonic", "null")  # nothing marks a call there
                if said != "null":  # nothing marks a call there
                    compile_grammar(api.engine.calls[-1].params.structured_outputs, byte_tokenizer())


async def test_an_error_names_the_field_that_the_client_wrote():
    bad, named = tool_with(LOOKS_AHEAD, strict=True), "tools[1].function.parameters.properties.k.pattern"
    lenient = tool_with(LOOKS_AHEAD)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": {"k": LOOKS_AHEAD}}}}
    place = "response_format.json_schema.schema.properties.k.pattern"
    for family in ("hermes", "qwen3_coder", "openai"):
        async with in_process(engine("Hello."), ServerSettings(tool_call_parser=family)) as api:
            for more in ({}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
                message = check_error(await api.chat(tools=[NOW, bad], **more), 400, named)
                assert message.startswith(f"{named} cannot be used: ")
            for tools in ([lenient], None):
                check_error(await api.chat(tools=tools, response_format=schema), 400, place)
            many = [tool_with({"enum": ["v" * 820]}, strict=True) for _ in range(1000)]
            for number, tool in enumerate(many):
                tool["function"]["name"] = f"t{number}"
            assert "together" in check_error(await api.chat(tools=many), 400, "tools")
    async with in_process(engine("Hello."), HERMES) as api:
        function = {"type": "function", **bad["function"]}
        answer = await api.post(
            "/v1/responses", {"model": MODEL, "input": "q", "tools": [function, function | {"name": "y"}]}
        )
        check_error(answer, 400, "tools[0].parameters.properties.k.pattern")
        tool = {"name": "x", "input_schema": bad["function"]["parameters"], "strict": True}
        answer = await api.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [USER], "tools": [tool]})
        assert answer.status_code == 400
        assert "tools[0].input_schema.properties.k.pattern cannot be used" in answer.json()["error"]["message"]


async def test_a_format_is_for_answers_without_calls():
    async with in_process(engine(CALLS), HERMES) as api:
        await api.chat(tools=TOOLS, response_format={"type": "json_object"})
        tag = tag_of(api)
        assert (tag["type"], tag["elements"][0]["type"]) == ("or", "json_schema")
        await api.chat(tools=TOOLS, structured_outputs={"choice": ["a", "b"]})
        assert tag_of(api)["elements"][0]["elements"][1] == {"type": "const_string", "value": "b"}
        await api.chat(tools=TOOLS, response_format={"type": "json_object"}, tool_choice="required")
        assert tag_of(api)["type"] == "tags_with_separator"


async def test_tools_are_shown_unless_none_may_be_called():
    async with in_process(engine(CALLS), HERMES) as api:
        await api.chat(tools=TOOLS)
        assert "TOOLS" in api.engine.tokenizer.decode(api.engine.calls[-1].prompt)
        body = (await api.chat(tools=TOOLS, tool_choice="none")).json()
        assert "TOOLS" not in api.engine.tokenizer.decode(api.engine.calls[-1].prompt)
        assert body["choices"][0]["message"]["content"] == CALLS
        assert body["choices"][0]["finish_reason"] == "stop"


async def test_a_call_that_was_cut_short_ends_for_its_length():
    async with in_process(engine(CALLS), HERMES) as api:
        body = (await api.chat(tools=TOOLS, max_tokens=70)).json()
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


async def test_what_the_model_wrote_never_ends_a_chat():
    past = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": text}}
            for text in ('{"city": ', "", "[1]", "nonsense")
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
    ]  # fmt: skip
    async with in_process(engine("Fine."), HERMES) as api:
        assert (await api.chat(messages=past)).json()["choices"][0]["message"]["content"] == "Fine."


PATCH = 'start: "*** " /(.+)/ LF\n%import common.LF'
CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "P",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}},
    },
}
PATCHED = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** a \\"b\\"\\n"}}\n</tool_call>'


async def test_a_custom_tool_is_called_with_a_text():
    async with on_socket(engine(PATCHED), HERMES) as server, server.openai() as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[USER], tools=[CUSTOM])
        (call,) = answer.choices[0].message.tool_calls
        assert (call.type, call.custom.name, call.custom.input) == ("custom", "patch", '*** a "b"\n')
        shown = json.loads(server.engine.calls[0].params.structured_outputs.structural_tag)["format"]
        assert shown["type"] == "triggered_tags"  # its format holds wherever the model calls it
        stream = await client.chat.completions.create(model=MODEL, messages=[USER], tools=[CUSTOM], stream=True)
        calls = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
        assert (calls[0].id is not None, calls[0].type, calls[0].custom["name"]) == (True, "custom", "patch")
        assert "".join(call.custom["input"] for call in calls) == '*** a "b"\n'
        said = answer.choices[0].message.model_dump(exclude_none=True)
        messages = [USER, said, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
        await client.chat.completions.create(model=MODEL, messages=messages, tools=[CUSTOM])


async def test_the_model_is_shown_a_custom_tool_as_a_function():
    template = (
        "{% for t in tools %}{{ t.type }} {{ t.function.name }} {{ t.function.parameters.properties.keys() | list }};"
        "{% endfor %}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
        "{% endfor %}"
    )
    called = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": 'x "y"'}}
    fake = FakeEngine(script=Script(pieces=PATCHED), template=template)
    async with in_process(fake, HERMES) as api:
        message = {"role": "assistant", "content": None, "tool_calls": [called]}
        assert (await api.chat(tools=[CUSTOM, WEATHER], messages=[USER, message])).status_code == 200
        prompt = api.engine.tokenizer.decode(api.engine.calls[-1].prompt)
        assert prompt == "function patch ['input'];function weather ['city'];" + r'{"input": "x \"y\""}'
        for choice in ({"type": "custom", "custom": {"name": "patch"}}, "required"):
            body = (await api.chat(tools=[CUSTOM, WEATHER], tool_choice=choice)).json()
            begins = [tag["begin"] for tag in tag_of(api)["tags"]]
            assert ["patch" in begin for begin in begins] == ([True, False] if choice == "required" else [True])
            assert body["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == '*** a "b"\n'
        broken = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
        check_error(await api.chat(messages=[USER, broken]), 400, "messages[1].tool_calls[0].function")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"type": "other"}, "must have the type text, or grammar"),
        ({"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "x"}}, "must have the type text, or grammar"),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: x"}}, "unknown name"),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"\n%ignore " "'}}, "%ignore is not"),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}}, "unclosed group"),
    ],
)
async def test_the_format_of_a_custom_tool_is_checked(form, reason):
    async with in_process(engine(PATCHED), HERMES) as api:
        tool = {"type": "custom", "custom": {"name": "x", "format": form}}
        assert reason in check_error(await api.chat(tools=[NOW, tool]), 400, "tools[1].custom.format")
        assert not api.engine.calls


async def test_characters_that_text_cannot_have_stay_escapes():
    said = '<tool_call>\n{"name": "now", "arguments": {"a": "\\ud800 \\ud83d\\ude00"}}\n</tool_call>'
    async with in_process(engine(said), HERMES) as api:
        (call,) = (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": "\ud800 \U0001f600"}
        streamed = read_stream((await api.chat(tools=TOOLS, stream=True)).text)
        calls = [call for chunk in streamed for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert "".join(piece["function"].get("arguments", "") for piece in calls) == call["function"]["arguments"]


async def test_log_probabilities_and_ids_come_once():
    async with in_process(engine(CALLS), HERMES) as api:
        response = await api.chat(tools=TOOLS, stream=True, logprobs=True, return_token_ids=True)
        chunks = [chunk["choices"][0] for chunk in read_stream(response.text)]
        ids = [token for choice in chunks for token in choice.get("token_ids", [])]
        tokens = [entry for choice in chunks for entry in (choice["logprobs"] or {"content": []})["content"]]
        assert ids == list(range(len(CALLS)))
        assert "".join(entry["token"] for entry in tokens) == CALLS


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be function or custom"),
    ({"tools": [{"type": "function"}]}, "tools[0].type", "must be function or custom"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "A-Z a-z 0-9"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "1 to 128"),
    ({"tools": [NOW, NOW]}, "tools", "different names"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice", "not among"),
    ({"tool_choice": "required"}, "tool_choice", "tools must have a tool"),
    ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice", "one of none, auto, required"),
    ({"tools": [NOW], "tool_choice": {"type": "x"}}, "tool_choice", "one of none, auto, required"),
    ({"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(1025)]}, "tools", "at most 1024"),
    ({"tools": [NOW], "functions": [NOW["function"]]}, "functions", "functions"),
    ({"tools": 5}, "tools", "tools"),
    ({"thinking_token_budget": 5}, "thinking_token_budget", "none is known"),
]


@pytest.mark.parametrize(("fields", "param", "reason"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_refused_by_name(fields, param, reason):
    async with in_process(engine(CALLS), HERMES) as api:
        assert reason in check_error(await api.chat(**fields), 400, param)
        assert not api.engine.calls


async def test_a_server_may_read_no_calls():
    async with in_process(engine("Hello."), ServerSettings(tool_call_parser="none")) as api:
        assert "--tool-call-parser" in check_error(await api.chat(tools=TOOLS), 400, "tools")
        assert (await api.chat(tools=TOOLS, tool_choice="none")).status_code == 200


# ---- reasoning

THOUGHT = "Hm, héllo.\n</think>\n\nIt is sunny."


async def test_reasoning_is_apart_from_the_answer():
    async with in_process(engine(THOUGHT), THINKING) as api:
        body = (await api.chat()).json()
        message = body["choices"][0]["message"]
        assert message["content"] == "It is sunny."
        assert message["reasoning"] == message["reasoning_content"] == "Hm, héllo."
        assert "tool_calls" not in message
        details = body["usage"]["completion_tokens_details"]
        response = await api.chat(stream=True, stream_options={"include_usage": True})
        chunks = read_stream(response.text)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm, héllo."
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, héllo."
        assert "".join(delta.get("content", "") for delta in deltas) == "It is sunny."
        assert chunks[-1]["usage"]["completion_tokens_details"] == details
        # A token of the fake engine is a character, and those that its ids name have one too.
        assert details["reasoning_tokens"] == len("Hm, héllo.\n</think>")


async def test_all_reasoning_is_counted_and_nothing_else():
    said = "Hm.</think>Sunny.<think>Or é?</think>No."
    async with in_process(SpokenEngine(said), THINKING) as api:
        usage = (await api.chat()).json()["usage"]
    counted = len("Hm.</think><think>Or é?</think>".encode())  # a token is a byte
    assert usage["completion_tokens_details"]["reasoning_tokens"] == counted


async def test_reasoning_is_left_out_if_asked():
    async with in_process(engine(THOUGHT), THINKING) as api:
        message = (await api.chat(include_reasoning=False)).json()["choices"][0]["message"]
        assert "reasoning" not in message
        assert message["content"] == "It is sunny."
        assert "Hm" not in (await api.chat(include_reasoning=False, stream=True)).text


async def test_a_grammar_waits_for_the_end_of_reasoning():
    async with in_process(engine(THOUGHT), THINKING) as api:
        await api.chat(response_format={"type": "json_object"}, thinking_token_budget=7)
        params = api.engine.calls[-1].params
        assert params.reasoning == ReasoningParams("<think>", "</think>", begun=True)
        assert params.thinking_token_budget == 7
        assert "</think>" in params.kept_special_tokens
        await api.chat()
        assert api.engine.calls[-1].params.reasoning is None


@pytest.mark.parametrize(("ending", "begun"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", True)])
async def test_the_prompt_says_whether_reasoning_has_begun(ending, begun):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" + ending.replace("\n", "{{ '\\n' }}")
    async with in_process(FakeEngine(script=Script(pieces=THOUGHT), template=template), THINKING) as api:
        message = (await api.chat(response_format={"type": "json_object"})).json()["choices"][0]["message"]
        assert api.engine.calls[-1].params.reasoning.begun is begun
        assert message["reasoning"] == ("Hm, héllo." if begun else None)


async def test_effort_is_the_template_s_own_variable():
    template = "{{ reasoning_effort }}|{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    async with in_process(FakeEngine(script=Script(), template=template), THINKING) as api:
        for asked, prompt in (("high", "high|"), ("none", "none|False")):
            await api.chat(reasoning_effort=asked)
            assert api.engine.tokenizer.decode(api.engine.calls[-1].prompt) == prompt
        await api.chat(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"})
        assert api.engine.tokenizer.decode(api.engine.calls[-1].prompt) == "low|"
    async with in_process(engine("Hi.")) as api:
        assert (await api.chat(reasoning_effort="high")).status_code == 200


def test_a_parser_that_there_is_not_is_refused_at_the_start():
    from tessera.errors import ConfigError

    for name in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match="is one of auto, none"):
            ServerSettings(**{name: "other"})


# As Mistral's template has it.
NINE = (
    "{%- for m in messages %}{%- for c in m.tool_calls or [] %}{%- if c.id is undefined or c.id|length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "[{{ c.id }} {{ c.function.name }}]{%- endfor %}{%- if m.role == 'tool' %}{%- if m.tool_call_id|length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "[{{ m.tool_call_id }} {{ m.content }}]{%- endif %}{%- endfor %}"
)


async def test_every_route_gives_a_template_ids_that_it_takes():
    function = {"name": "now", "arguments": "{}"}
    calls = [{"id": f"call_{number}", "type": "function", "function": function} for number in "ab"]
    results = [{"role": "tool", "tool_call_id": f"call_{number}", "content": number} for number in "ba"]
    chat = {"messages": [USER, {"role": "assistant", "tool_calls": calls}, *results]}
    items = [
        {"role": "user", "content": "Weather?"},
        *({"type": "function_call", "call_id": call["id"], **function} for call in calls),
        *(
            {"type": "function_call_output", "call_id": one["tool_call_id"], "output": one["content"]}
            for one in results
        ),
    ]
    blocks = [{"type": "tool_use", "id": call["id"], "name": "now", "input": {}} for call in calls]
    answers = [
        {"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": one["content"]} for one in results
    ]
    turns = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]
    named = [{"role": "tool", "tool_name": name, "content": name[-1]} for name in ("tool_b", "tool_a")]
    of_ollama = [{"function": {"name": name, "arguments": {}}} for name in ("tool_a", "tool_b")]
    spoken = {"role": "assistant", "content": "", "tool_calls": of_ollama}
    requests = [
        ("/v1/chat/completions", {"model": MODEL, **chat}),
        ("/tokenize", {"model": MODEL, **chat}),
        ("/v1/responses", {"model": MODEL, "input": items}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": turns}),
        ("/api/chat", {"model": MODEL, "stream": False, "messages": [USER, spoken, *named]}),
    ]
    served = FakeEngine(script=Script(pieces="Yes."), template=NINE)
    async with in_process(served, ServerSettings(tool_call_parser="mistral")) as api:
        for path, body in requests:
            answer = await api.post(path, body)
            assert answer.status_code == 200, (path, answer.text)
            if path == "/tokenize":
                continue
            prompt = served.tokenizer.decode(served.calls[-1].prompt)
            (first, _), (second, _), *after = (part.split(" ", 1) for part in prompt[1:-1].split("]["))
            assert first != second, path
            assert after == [[second, "b"], [first, "a"]], path


NEEDS_ITSELF = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"]}
ENDLESS = [
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}, "required": ["a"], "$defs": {"N": NEEDS_ITSELF}},
    {"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/A"}}},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
]


@pytest.mark.parametrize("parameters", ENDLESS, ids=range(len(ENDLESS)))
async def test_arguments_that_no_schema_allows_are_any_object(parameters: Any):
    tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    async with in_process(engine("Hello."), HERMES) as api:
        assert (await api.chat(tools=[tool], tool_choice="required")).status_code == 200
        matcher = compile_grammar(api.engine.calls[-1].params.structured_outputs, byte_tokenizer())
        call = drawn(matcher, random.Random(1), ['"', "}"]).decode()
        assert isinstance(json.loads(call.removeprefix("<tool_call>\n").split("\n</tool_call>")[0])["arguments"], dict)
        tool["function"]["strict"] = True
        answer = await api.chat(tools=[tool], tool_choice="required")
        assert answer.json()["error"]["param"].startswith("tools[0].function.parameters")


async def test_a_strict_tool_s_alternatives_exclude_one_another_or_are_refused():
    either = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "multipleOf": 3}]}
    place = "tools[0].function.parameters.properties.k"
    for choice in ("auto", "required"):
        async with in_process(engine("Hello."), HERMES) as api:
            answer = await api.chat(tools=[tool_with(either, strict=True)], tool_choice=choice)
            check_error(answer, 400, f"{place}.oneOf")
            assert (await api.chat(tools=[tool_with(either)], tool_choice=choice)).status_code == 200
