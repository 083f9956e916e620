"""An answer is the same whole as streamed, on every wire: its items, their order, log probabilities, token ids, usage
and reasons. Requests and what the model says to them are generated."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import Api, in_process
from tests.server.fake_engine import MODEL
from tests.server.spoken_engine import SpokenEngine

TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
WORDS = ("a", "né", " ", "\n", "漢字", "🦜", "STOP", "end.", '"x"', "<", "the quick")
SETTINGS = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")
Answers = tuple[Any, Any]


def words(rng: random.Random, most: int = 5) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def spoken(rng: random.Random) -> str:
    """Reasoning, texts and calls in any order, and calls that are none."""
    parts = [words(rng) + "</think>" if rng.random() < 0.7 else "</think>"]
    for _ in range(rng.randrange(5)):
        arguments = json.dumps({"k": words(rng)}, ensure_ascii=rng.random() < 0.5)
        call = f'<tool_call>\n{{"name": "go", "arguments": {arguments}}}\n</tool_call>'
        parts.append(
            rng.choice((words(rng), call, call, "<tool_call>no</tool_call>", "<think>" + words(rng) + "</think>"))
        )
    return rng.choice(("", "\n\n")).join(parts)


def common(rng: random.Random, said: list[str]) -> dict[str, Any]:
    """Fields of a request that any answer may be cut by."""
    length = max(len(text.encode()) for text in said)
    return {"max_tokens": rng.randrange(1, length + 3) if rng.random() < 0.5 else length + 3, "stop": _stops(rng)}


def _stops(rng: random.Random) -> list[str]:
    return rng.sample(("STOP", "字", "end.", "quick"), rng.randrange(3))


# ---- what a client puts together -------------------------------------------------------------------------------------


def data_of(text: str) -> list[Any]:
    return [json.loads(line) for line in re.findall(r"^data: (.*)$", text, re.MULTILINE) if line != "[DONE]"]


def unnamed(value: Any) -> Any:
    """Without what differs between two requests: ids and times."""
    match value:
        case dict():
            left_out = ("id", "call_id", "created", "created_at", "completed_at", "object")
            return {k: unnamed(v) for k, v in value.items() if k not in left_out and not k.endswith("_duration")}
        case list() | tuple():
            return [unnamed(each) for each in value]
    return value


async def of_chat(api: Api, rng: random.Random) -> Answers:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "q"}],
        "tools": [TOOL],
        "n": len(api.engine.said),
        "return_token_ids": rng.random() < 0.5,
        **common(rng, api.engine.said),
    }
    if rng.random() < 0.5:
        asked |= {"logprobs": True, "top_logprobs": rng.randrange(3)}
    whole = (await api.post("/v1/chat/completions", asked)).json()
    chunks = data_of(
        (
            await api.post("/v1/chat/completions", {**asked, "stream": True, "stream_options": {"include_usage": True}})
        ).text
    )
    if asked["return_token_ids"]:
        assert all("token_ids" in choice for chunk in chunks for choice in chunk["choices"])
    streamed = [_chat_choice(whole["choices"][index], chunks, index) for index in range(asked["n"])]
    assert "prompt_token_ids" not in whole or chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    return (whole["choices"], whole["usage"]), (streamed, chunks[-1]["usage"])


def _own(chunks: list[Any], index: int) -> list[Any]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def _chat_choice(whole: Mapping[str, Any], chunks: list[Any], index: int) -> dict[str, Any]:
    """whole: says which fields there are."""
    own = _own(chunks, index)
    calls: dict[int, Any] = {}
    for choice in own:
        for call in choice["delta"].get("tool_calls", ()):
            kept = calls.setdefault(call["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
            for name, text in call["function"].items():
                kept["function"][name] += text
    content = "".join(choice["delta"].get("content") or "" for choice in own)
    reasoning = "".join(choice["delta"].get("reasoning") or "" for choice in own) or None
    message = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        message["tool_calls"] = [calls[number] for number in sorted(calls)]
    found = {
        "index": index,
        "message": {
            **dict.fromkeys(whole["message"]),
            **message,
            "reasoning": reasoning,
            "reasoning_content": reasoning,
        },
        "logprobs": None,
        "finish_reason": own[-1]["finish_reason"],
        "stop_reason": own[-1]["stop_reason"],
    }
    if "token_ids" in whole:
        found["token_ids"] = [token for choice in own for token in choice.get("token_ids", ())]
    if whole["logprobs"] is not None:
        entries = [entry for choice in own if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        found["logprobs"] = {"content": entries}
    return {**dict.fromkeys(whole), **found}


async def of_completions(api: Api, rng: random.Random) -> Answers:
    asked = {
        "model": MODEL,
        "prompt": "né",
        "n": len(api.engine.said),
        "return_token_ids": rng.random() < 0.5,
        "echo": rng.random() < 0.3,
        **common(rng, api.engine.said),
    }
    if rng.random() < 0.5 and not asked["echo"]:
        asked["logprobs"] = rng.randrange(3)
    whole = (await api.post("/v1/completions", asked)).json()
    chunks = data_of(
        (await api.post("/v1/completions", {**asked, "stream": True, "stream_options": {"include_usage": True}})).text
    )
    streamed = []
    for index, choice in enumerate(whole["choices"]):
        own = _own(chunks, index)
        assert not asked["return_token_ids"] or all("token_ids" in each for each in own)
        found = {**choice, "text": "".join(each["text"] for each in own)}
        found |= {name: own[-1][name] for name in ("finish_reason", "stop_reason")}
        if asked["return_token_ids"]:
            found["token_ids"] = [token for each in own for token in each["token_ids"]]
            found["prompt_token_ids"] = own[0]["prompt_token_ids"]
        if choice["logprobs"] is not None:
            shown = [each["logprobs"] for each in own if each["logprobs"]]
            found["logprobs"] = {name: sum((each[name] for each in shown), []) for name in choice["logprobs"]}
        streamed.append(found)
    return (whole["choices"], whole["usage"]), (streamed, chunks[-1]["usage"])


async def of_responses(api: Api, rng: random.Random) -> Answers:
    cut = common(rng, api.engine.said)["max_tokens"]
    spec = {"type": "function", "name": "go", "parameters": TOOL["function"]["parameters"]}
    asked = {"model": MODEL, "input": "q", "tools": [spec], "max_output_tokens": cut, "store": False}
    if rng.random() < 0.5:
        asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": rng.randrange(3)}
    whole = (await api.post("/v1/responses", asked)).json()
    events = data_of((await api.post("/v1/responses", {**asked, "stream": True})).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert last["output"] == done
    assert [_item_of_deltas(events, index) for index in range(len(done))] == [_said(item) for item in done]
    return whole, last


def _said(item: Mapping[str, Any]) -> tuple[str, Any]:
    match item:
        case {"type": "message", "content": [part]}:
            return part["text"], part["logprobs"]
        case {"type": "reasoning", "content": [part]}:
            return part["text"], []
    return item["arguments"], []


def _item_of_deltas(events: list[Any], index: int) -> tuple[str, Any]:
    own = [each for each in events if each.get("output_index") == index and each["type"].endswith(".delta")]
    return "".join(each["delta"] for each in own), [entry for each in own for entry in each.get("logprobs", ())]


async def of_messages(api: Api, rng: random.Random) -> Answers:
    fields = common(rng, api.engine.said)
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": fields["max_tokens"],
        "stop_sequences": fields["stop"],
        "tools": [{"name": "go", "input_schema": TOOL["function"]["parameters"]}],
    }
    whole = (await api.post("/v1/messages", asked)).json()
    events = data_of((await api.post("/v1/messages", {**asked, "stream": True})).text)
    message = events[0]["message"]
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append({**block, "input": ""} if block["type"] == "tool_use" else block)
            case {"type": "content_block_delta", "index": index, "delta": {"type": _, **delta}}:
                block = message["content"][index]
                for name, text in delta.items():
                    block["input" if name == "partial_json" else name] += text
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= delta
                message["usage"] |= usage
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = _parsed(block["input"])
    return whole, message


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {"arguments": text}


async def of_ollama_chats(api: Api, rng: random.Random) -> Answers:
    fields = common(rng, api.engine.said)
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "q"}],
        "tools": [TOOL],
        "options": {"num_predict": fields["max_tokens"], "stop": fields["stop"]},
    }
    whole, lines = await _ollama(api, "/api/chat", asked)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        for name, value in line["message"].items():
            if name != "role":
                message[name] = message[name] + value if name in message else value
    return whole, {**lines[-1], "message": message}


async def of_ollama_prompts(api: Api, rng: random.Random) -> Answers:
    fields = common(rng, api.engine.said)
    options = {"num_predict": fields["max_tokens"], "stop": fields["stop"]}
    whole, lines = await _ollama(api, "/api/generate", {"model": MODEL, "prompt": "q", "options": options})
    said = {name: "".join(line.get(name, "") for line in lines) for name in ("response", "thinking")}
    return whole, {**lines[-1], **{name: text for name, text in said.items() if text or name == "response"}}


async def _ollama(api: Api, path: str, asked: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    whole = (await api.post(path, {**asked, "stream": False})).json()
    return whole, [json.loads(line) for line in (await api.post(path, asked)).text.splitlines()]


WIRES: dict[str, Callable[[Api, random.Random], Any]] = {
    "chat": of_chat,
    "completions": of_completions,
    "responses": of_responses,
    "messages": of_messages,
    "ollama chats": of_ollama_chats,
    "ollama prompts": of_ollama_prompts,
}


async def compared(wire: str, seeds: range) -> int:
    """How many answers were compared. Each is whole in one request, and streamed in another."""
    engine = SpokenEngine()
    async with in_process(engine, SETTINGS) as api:
        for seed in seeds:
            rng = random.Random(f"{wire} {seed}")
            several = wire in ("chat", "completions") and rng.random() < 0.3
            engine.said = [spoken(rng) for _ in range(2 if several else 1)]
            engine.strides = [rng.choice((1, 1, 2, 3, 7)) for _ in range(3)]
            whole, streamed = await WIRES[wire](api, rng)
            assert unnamed(whole) == unnamed(streamed), (wire, seed, engine.said)
    return len(seeds)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_whole_answer_is_the_one_that_is_streamed(wire: str) -> None:
    print(f"{wire}: {await compared(wire, range(60))} answers compared, whole and streamed")


@pytest.mark.nightly
@pytest.mark.parametrize("wire", WIRES)
async def test_many_more_answers(wire: str) -> None:
    print(f"{wire}: {await compared(wire, range(60, 2000))} answers compared, whole and streamed")
