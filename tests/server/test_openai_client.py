"""OpenAI's own client against a server on a socket."""

from __future__ import annotations

import openai
import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_lifecycle import until

USER = {"role": "user", "content": "Hi"}


@pytest.fixture
async def client():
    async with on_socket(FakeEngine(script=Script(num_cached_tokens=4))) as server, server.openai() as client:
        yield client


async def test_models(client):
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "tessera"


async def test_chat(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=[USER], n=2, logprobs=True, top_logprobs=2, temperature=0.7, max_completion_tokens=16
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello, wörld!"] * 2
    assert answer.choices[1].logprobs.content[0].top_logprobs[0].token == "a"
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_chat_stream(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=[USER], n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = {0: "", 1: ""}
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello, wörld!", 1: "Hello, wörld!"}
    assert chunks[-1].usage.completion_tokens == 10
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_client_s_own_stream_helper_puts_the_answer_together(client):
    async with client.chat.completions.stream(model=MODEL, messages=[USER]) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello, wörld!"
    assert answer.choices[0].finish_reason == "stop"


async def test_completions(client):
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], n=2, logprobs=1, echo=False)
    assert [choice.text for choice in answer.choices] == ["Hello, wörld!"] * 4
    assert answer.choices[0].logprobs.text_offset == [0, 3, 5, 7, 12]


async def test_completions_stream(client):
    stream = await client.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, wörld!"


async def test_vllm_s_extras_by_extra_body(client):
    extra = {"top_k": 5, "min_p": 0.1, "ignore_eos": True, "return_token_ids": True}
    answer = await client.chat.completions.create(model=MODEL, messages=[USER], extra_body=extra)
    assert answer.choices[0].model_extra["token_ids"] == [0, 1, 2, 3, 4]


async def test_errors_become_the_client_s_own(client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other", messages=[USER])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model=MODEL, messages=[USER], response_format={"type": "json_schema"})
    assert wrong.value.param == "response_format.json_schema"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model=MODEL, prompt="x" * 1000)
    assert long.value.code == "context_length_exceeded"


async def test_an_error_in_a_stream_is_raised():
    script = Script(error=RuntimeError("a bug"), error_at=2)
    async with on_socket(FakeEngine(script=script)) as server, server.openai() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="failed while handling this request"):
            async for _ in stream:
                pass


async def test_keys():
    async with on_socket(FakeEngine(), ServerSettings(api_keys=("secret",))) as server:
        async with server.openai(api_key="secret") as client:
            assert (await client.chat.completions.create(model=MODEL, messages=[USER])).choices
        async with server.openai(api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
            assert refused.value.code == "invalid_api_key"


async def test_leaving_a_stream_early_ends_the_request():
    engine = FakeEngine(script=Script(pieces=["x"] * 400, delay=0.01))
    async with on_socket(engine) as server, server.openai() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=[USER], stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: not engine.running)
        assert engine.aborted
