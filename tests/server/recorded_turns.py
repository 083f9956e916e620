"""What tests/server/recorded has: requests of clients, without their sentences, and what the model says to each. And
what a client reads in the answers, of all APIs alike."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
_LENGTH = re.compile(r"<(\d+) characters>")
_TEXTS = ("text", "content", "output", "thinking", "reasoning_content", "instructions", "system")


@dataclass
class Turn:
    """A request, and what the model says to it: a text, a call ({"name", "arguments"}), or None if no model is
    asked."""

    client: str
    path: str
    method: str
    headers: dict[str, str]
    body: Any
    said: Any = None

    @property
    def streams(self) -> bool:
        return self.body is not None and self.body.get("stream") is True

    @property
    def continues(self) -> bool:
        """Whether the model goes on with what it has said."""
        return self.body.get("continue_final_message") is True


@dataclass
class Answer:
    """calls: names with arguments. done: the stream came to its end, and said what was used."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    done: bool = False


def turns() -> Iterator[tuple[str, Turn]]:
    """All turns, each with a name."""
    for path in sorted(FOLDER.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for number, request in enumerate(found["requests"]):
            body = request.get("body")
            if body is not None:
                body = expanded({**body, **found["shared"]}, itertools.count())
            headers = request.get("headers", found.get("headers"))
            method = request.get("method", "POST")
            yield (
                f"{path.stem}-{number}",
                Turn(found["client"], request["path"], method, headers, body, request.get("said")),
            )


def expanded(value: Any, numbers: Iterator[int]) -> Any:
    """A text of as many characters as the client's own, and unlike any other, for each length."""
    match value:
        case dict():
            return {name: expanded(each, numbers) for name, each in value.items()}
        case list():
            return [expanded(each, numbers) for each in value]
        case str() if found := _LENGTH.fullmatch(value):
            length, words = int(found[1]), f"text {next(numbers)}. "
            return (words * (length // len(words) + 1))[: length - 1] + "."
    return value


def texts_of(body: Any) -> Iterator[str]:
    """What the messages of a request say."""
    for name in ("messages", "input", "system", "instructions"):
        yield from _texts(body.get(name, []), name)


def _texts(value: Any, key: str) -> Iterator[str]:
    match value:
        case {"type": "tool_use"}:
            pass  # JSON
        case dict():
            for name, each in value.items():
                yield from _texts(each, name)
        case list():
            for each in value:
                yield from _texts(each, key)
        case str() if key in _TEXTS:
            yield value


# ---- answers ---------------------------------------------------------------------------------------------------------


def read(path: str, content: str) -> Answer:
    """An answer as the client of that path reads it, streamed or whole."""
    if path == "/api/chat":
        return _ollama([json.loads(line) for line in content.splitlines()])
    if not content.startswith(("data:", "event:")):
        return _chat_whole(json.loads(content))
    data = re.findall(r"^data: (.*)$", content, re.MULTILINE)
    events = [json.loads(each) for each in data if each != "[DONE]"]
    if path == "/v1/responses":
        return _responses(events)
    if path.startswith("/v1/messages"):
        return _messages(events)
    answer = _chat(events)
    answer.done = answer.done and data[-1] == "[DONE]"
    return answer


def _responses(events: list[dict[str, Any]]) -> Answer:
    """Codex takes items when they are done, and what was used from the end."""
    answer = Answer()
    for event in events:
        match event:
            case {"type": "response.output_text.delta", "delta": text}:
                answer.text += text
            case {"type": "response.output_item.done", "item": {"type": "function_call"} as item}:
                space = f"{item['namespace']}__" if "namespace" in item else ""
                answer.calls.append((space + item["name"], json.loads(item["arguments"])))
            case {"type": "response.completed", "response": {"id": str(), "usage": {"total_tokens": int()}}}:
                answer.done = True
    return answer


def _messages(events: list[dict[str, Any]]) -> Answer:
    answer, blocks = Answer(), {}
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                blocks[index] = [block, ""]
            case {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}:
                blocks[index][1] += text
            case {"type": "content_block_delta", "index": index, "delta": {"partial_json": text}}:
                blocks[index][1] += text
            case {"type": "message_delta", "delta": {"stop_reason": str(why)}, "usage": {"output_tokens": int()}}:
                called = any(block["type"] == "tool_use" for block, _ in blocks.values())
                answer.done = why == ("tool_use" if called else "end_turn")
    for block, text in blocks.values():
        if block["type"] == "tool_use":
            answer.calls.append((block["name"], json.loads(text)))
        else:
            answer.text += text
    assert events[-1]["type"] == "message_stop"
    return answer


def _chat(events: list[dict[str, Any]]) -> Answer:
    answer, calls = Answer(), {}
    for event in events:
        for choice in event["choices"]:
            answer.text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                own = calls.setdefault(call["index"], ["", ""])
                own[0] += call["function"].get("name") or ""
                own[1] += call["function"].get("arguments") or ""
            if choice["finish_reason"]:
                assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    answer.calls = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    answer.done = events[-1]["usage"]["total_tokens"] > 0
    return answer


def _chat_whole(found: dict[str, Any]) -> Answer:
    (choice,) = found["choices"]
    return Answer(choice["message"]["content"], [], found["usage"]["total_tokens"] > 0)


def _ollama(lines: list[dict[str, Any]]) -> Answer:
    answer = Answer(done=lines[-1]["done"] is True and lines[-1]["eval_count"] > 0)
    for line in lines:
        answer.text += line["message"]["content"]
        for call in line["message"].get("tool_calls", []):
            answer.calls.append((call["function"]["name"], call["function"]["arguments"]))
    return answer
