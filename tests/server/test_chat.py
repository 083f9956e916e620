from __future__ import annotations

from openai.types.chat import ChatCompletion

from tests.server.sse import check_chat, text_of


async def test_answers(api):
    response = await api.chat()
    assert response.status_code == 200
    answer = ChatCompletion.model_validate(response.json(), strict=True)
    assert answer.choices[0].message.content == "Hello, wörld!"
    assert answer.choices[0].finish_reason == "stop"


async def test_streams(api):
    response = await api.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert text_of(check_chat(response.text)) == "Hello, wörld!"
