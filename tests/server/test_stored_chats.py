"""Chat completions that are kept, by OpenAI's client and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionStoreMessage

from tessera.errors import EngineStepError
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.sse import read_stream
from tests.server.test_errors import check_error
from tests.server.test_tools import CALLS, HERMES, TOOLS

USER = {"role": "user", "content": "Hi"}
PATH = "/v1/chat/completions"


async def test_a_client_gets_it_again():
    async with on_socket(FakeEngine()) as server, server.openai() as client:
        chats = client.chat.completions
        parts = [{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}]
        made = await chats.create(model=MODEL, messages=[USER, *parts], store=True, metadata={"a": "b"}, n=2)
        kept = await chats.retrieve(made.id)
        ChatCompletion.model_validate(kept.model_dump(), strict=True)
        assert {**made.model_dump(), "metadata": {"a": "b"}} == kept.model_dump()
        messages = [message async for message in await chats.messages.list(made.id)]
        for message in messages:
            ChatCompletionStoreMessage.model_validate({**message.model_dump(), "role": "assistant"}, strict=True)
        assert [message.content for message in messages] == ["Hi", "A\nB"]
        assert [part.text for part in messages[1].content_parts] == ["A", "B"]
        changed = await chats.update(made.id, metadata={"c": "d"})
        assert (changed.id, (await chats.retrieve(made.id)).metadata) == (made.id, {"c": "d"})
        gone = await chats.delete(made.id)
        assert (gone.id, gone.deleted, gone.object) == (made.id, True, "chat.completion.deleted")
        with pytest.raises(openai.NotFoundError):
            await chats.retrieve(made.id)


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}], ids=["streamed", "whole"])
async def test_a_stream_is_kept_as_a_whole_answer_is(fields):
    async with in_process(FakeEngine(script=Script(pieces=CALLS)), HERMES) as api:
        response = await api.chat(tools=TOOLS, store=True, logprobs=True, n=2, temperature=1.0, **fields)
        body = read_stream(response.text)[0] if fields["stream"] else response.json()
        kept = (await api.client.get(f"{PATH}/{body['id']}")).json()
        for choice in kept["choices"]:
            message = choice["message"]
            assert (message["content"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
            assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "now"]
            assert len(choice["logprobs"]["content"]) == len(CALLS)
        assert kept["usage"]["completion_tokens"] == 2 * len(CALLS)
        assert kept["object"] == "chat.completion"


async def test_nothing_is_kept_unasked():
    async with in_process(FakeEngine()) as api:
        for fields in ({}, {"store": False}, {"metadata": {"a": 5}}):
            made = (await api.chat(**fields)).json()
            check_error(await api.client.get(f"{PATH}/{made['id']}"), 404)
        assert (await api.client.get(PATH)).json()["data"] == []


async def test_a_stream_that_ends_early_is_not_kept():
    async with in_process(FakeEngine(script=Script(error=EngineStepError("x"), error_at=2))) as api:
        assert '"error"' in (await api.chat(store=True, stream=True)).text
        assert (await api.client.get(PATH)).json()["data"] == []


async def test_they_are_listed_in_pages():
    settings = ServerSettings(served_model_names=("one", "two"))
    async with in_process(FakeEngine(), settings) as api:
        ids = []
        for number in range(5):
            fields = {"model": "two" if number == 3 else "one", "metadata": {"number": str(number), "all": "yes"}}
            ids.append((await api.chat(store=True, **fields)).json()["id"])

        async def listed(query: str) -> tuple[list[int], bool]:
            page = (await api.client.get(f"{PATH}?{query}")).json()
            found = [ids.index(one["id"]) for one in page["data"]]
            assert (page["first_id"], page["last_id"]) == ((ids[found[0]], ids[found[-1]]) if found else (None, None))
            return found, page["has_more"]

        assert await listed("") == ([0, 1, 2, 3, 4], False)
        assert await listed("order=desc&limit=2") == ([4, 3], True)
        assert await listed(f"order=desc&limit=2&after={ids[3]}") == ([2, 1], True)
        assert await listed(f"limit=2&after={ids[2]}") == ([3, 4], False)
        assert await listed("model=two") == ([3], False)
        assert await listed("metadata[all]=yes&metadata[number]=1") == ([1], False)
        assert await listed("metadata[other]=x") == ([], False)
        await api.post(f"{PATH}/{ids[1]}", {"metadata": {}})
        assert await listed("") == ([0, 1, 2, 3, 4], False)
        check_error(await api.client.get(f"{PATH}?after=nothing"), 404, "after")
        check_error(await api.client.get(f"{PATH}?limit=101"), 400, "limit")
        check_error(await api.client.get(f"{PATH}?order=up"), 400, "order")


@pytest.mark.parametrize("metadata", [{"a": 5}, {"a": "x" * 513}, {"x" * 65: "a"}, {str(n): "" for n in range(17)}])
async def test_metadata_has_limits(api, metadata):
    check_error(await api.chat(store=True, metadata=metadata), 400, "metadata")
    made = (await api.chat(store=True)).json()
    response = await api.post(f"{PATH}/{made['id']}", {"metadata": metadata})
    assert response.status_code == 400


async def test_each_key_has_its_own(tmp_path: Path):
    settings = ServerSettings(api_keys=("a", "b"), response_store=str(tmp_path / "store"))

    def key(name: str) -> dict[str, Any]:
        return {"headers": {"Authorization": f"Bearer {name}"}}

    body = {"model": MODEL, "messages": [USER], "store": True}
    async with in_process(FakeEngine(), settings) as api:
        made = (await api.client.post(PATH, json=body, **key("a"))).json()
        assert (await api.client.get(f"{PATH}/{made['id']}", **key("b"))).status_code == 404
        assert (await api.client.get(PATH, **key("b"))).json()["data"] == []
    async with in_process(FakeEngine(), settings) as api:
        assert (await api.client.get(f"{PATH}/{made['id']}", **key("a"))).json()["id"] == made["id"]
