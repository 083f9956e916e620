"""Reads a stream as strictly as the strictest client: events, their grammar, and OpenAI's rules of order."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion


def data_of(body: str) -> list[str]:
    """The data of each event. Only `data:` lines and comments occur; each event ends with one empty line."""
    assert body.endswith("\n\n")
    events = []
    for block in body[:-2].split("\n\n"):
        if (lines := [line for line in block.split("\n") if not line.startswith(":")]) == []:
            continue
        assert len(lines) == 1, block
        assert lines[0].startswith("data: "), block
        events.append(lines[0].removeprefix("data: "))
    return events


def read_stream(body: str) -> list[dict[str, Any]]:
    """All events but [DONE], which must be the last and stand once."""
    events = data_of(body)
    assert events[-1] == "[DONE]"
    assert "[DONE]" not in events[:-1]
    return [json.loads(data) for data in events[:-1]]


def check_chat(body: str, *, n: int = 1, usage: bool = False, continuous: bool = False) -> list[dict[str, Any]]:
    """Raises AssertionError on whatever a client could stumble over; returns the chunks that have choices."""
    chunks = _check_frame(read_stream(body), "chat.completion.chunk", usage=usage, continuous=continuous)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    for index in range(n):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert own[-1]["delta"] == {}
        _check_finish(own)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == set(range(n))
    return chunks


def check_completion(
    body: str, *, choices: int = 1, usage: bool = False, continuous: bool = False
) -> list[dict[str, Any]]:
    chunks = _check_frame(read_stream(body), "text_completion", usage=usage, continuous=continuous)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        # The type has no null there, though OpenAI's own streams do.
        Completion.model_validate(
            {**chunk, "choices": [{**choice, "finish_reason": choice["finish_reason"] or "stop"}]}
        )
    for index in range(choices):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[-1]["text"] == ""
        _check_finish(own)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == set(range(choices))
    return chunks


def _check_finish(own: list[dict[str, Any]]) -> None:
    assert all("finish_reason" in choice for choice in own)
    assert all(choice["finish_reason"] is None for choice in own[:-1])
    assert own[-1]["finish_reason"] in ("stop", "length")


def _check_frame(events: list[dict[str, Any]], kind: str, *, usage: bool, continuous: bool) -> list[dict[str, Any]]:
    assert {(event["id"], event["created"], event["model"], event["object"]) for event in events} == {
        (events[0]["id"], events[0]["created"], events[0]["model"], kind)
    }
    if usage:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["total_tokens"] > 0
        events, last = events[:-1], events[-1]
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    for event in events:
        assert len(event["choices"]) == 1
        if continuous:
            assert event["usage"]["prompt_tokens"] > 0
        else:
            assert ("usage" in event) == usage
            assert event.get("usage") is None
    return events


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)
