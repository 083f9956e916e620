"""Past messages of the assistant, as each API writes them, by the templates of models."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script

JOINS = (
    "{% for m in messages %}<{{ m['role'] + '>' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name + c.function.arguments }}]{% endfor %}{% endfor %}"
)
NAME, ARGUMENTS, RESULT = "get", {"x": "é"}, "ok"
CALL = {"id": "call_0_0", "type": "function", "function": {"name": NAME, "arguments": '{"x":"é"}'}}
TOOL = {"role": "tool", "tool_call_id": "call_0_0", "content": RESULT}
USER = {"role": "user", "content": "q"}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, TOOL]},
    ),
    "chat, absent": ("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, TOOL]}),
    "chat, empty": (
        "/v1/chat/completions",
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, TOOL]},
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "call_0_0", "name": NAME, "arguments": '{"x":"é"}'},
                {"type": "function_call_output", "call_id": "call_0_0", "output": RESULT},
            ]
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 5,
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "call_0_0", "name": NAME, "input": ARGUMENTS}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0_0", "content": RESULT}]},
            ],
        },
    ),
    "ollama": (
        "/api/chat",
        {
            "stream": False,
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [{"function": {"name": NAME, "arguments": ARGUMENTS}}]},
                {"role": "tool", "content": RESULT},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", ROUTES)
async def test_a_message_that_only_calls_tools_where_a_template_joins_texts(name: str) -> None:
    path, body = ROUTES[name]
    engine = FakeEngine(script=Script(), template=JOINS)
    async with in_process(engine) as api:
        response = await api.post(path, {"model": MODEL, **body})
    assert response.status_code == 200, response.text
    assert engine.tokenizer is not None
    shown = engine.tokenizer.decode(engine.calls[0].prompt, skip_special_tokens=False)
    assert shown == f'<user>q<assistant>[get{{"x":"é"}}]<tool>{RESULT}'


async def test_a_chat_that_is_tokenized_has_the_same_prompt() -> None:
    engine = FakeEngine(template=JOINS)
    async with in_process(engine) as api:
        chat = ROUTES["chat"][1]
        response = await api.post("/tokenize", {"model": MODEL, **chat})
        await api.post("/v1/chat/completions", {"model": MODEL, **chat})
    assert response.json()["tokens"] == engine.calls[0].prompt
