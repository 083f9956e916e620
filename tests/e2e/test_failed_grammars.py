"""A grammar that cannot be completed ends an answer with an error, in each API's own form, whole and streamed."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.served import Served

CODE = "too_complex"
SAID = "The answer cannot be completed: its grammar takes more time or memory than the limit."
TEXT = {"type": "string", "pattern": r"^[a-z]{8}(?:\S+\s+){0,499}\S+$", "maxLength": 5000}
"""Is taken, and exceeds a limit after eight letters."""
SCHEMA = {"type": "object", "properties": {"t": TEXT}, "required": ["t"], "additionalProperties": False}
TURNS = {"messages": [{"role": "user", "content": "Say something."}]}
TOOL = {"name": "f", "parameters": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "name": "s", "schema": SCHEMA}

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {**TURNS, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ),
    "strict tool": (
        "/v1/chat/completions",
        {**TURNS, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    ),
    "completions": ("/v1/completions", {"prompt": "Say", "structured_outputs": {"json": SCHEMA}}),
    "responses": ("/v1/responses", {"input": "Say something.", "text": {"format": FORMAT}}),
    "messages": ("/v1/messages", {**TURNS, "max_tokens": 90, "output_config": {"format": FORMAT}}),
    "ollama chat": ("/api/chat", {**TURNS, "format": SCHEMA}),
    "ollama generate": ("/api/generate", {"prompt": "Say", "format": SCHEMA}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    arguments = ["--served-model-name", "demo", "--tool-call-parser", "hermes", "--threads", "1"]
    with Served(arguments, tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def ask(server: Served, path: str, body: dict[str, Any]) -> tuple[int, str]:
    data = json.dumps({"model": "demo", **body}).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def counted(server: Served) -> int:
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("tessera:request_failures_total{") and CODE in line]
    return int(float(line.rpartition(" ")[2]))


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_that_cannot_be_completed_is_an_error(server: Served, name: str) -> None:
    path, body = ASKED[name]
    before = counted(server)
    status, said = ask(server, path, {**body, "stream": False})
    assert status == 400, said
    assert SAID in said
    assert counted(server) == before + 1
    status, said = ask(server, path, {**body, "stream": True})
    assert status == 200, said
    assert SAID in said
    assert not re.search(
        r'"(finish_reason|stop_reason|done_reason|status)": ?"(stop|tool_calls|completed|end_turn|tool_use)"', said
    )
    assert not re.search(r'"done": ?true', said)
    assert counted(server) == before + 2


def test_it_reaches_no_other_request_and_is_logged_once_for_each_grammar(server: Served) -> None:
    path, body = ASKED["completions"]
    schema = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999}, {**TEXT, "maxLength": 4999}]}
    asked = {**body, "structured_outputs": {"json": schema}, "temperature": 0}
    quote, digits = {"bad_words": ['"']}, {"bad_words": [str(digit) for digit in range(10)]}
    status, said = ask(server, path, {**asked, **quote})
    assert status == 200, said
    logged = server.log.read_text().count("ended an answer with an error")
    for _ in range(3):
        assert ask(server, path, {**asked, **digits})[0] == 400
        again = json.loads(ask(server, path, {**asked, **quote})[1])
        assert again["choices"] == json.loads(said)["choices"]
    assert server.log.read_text().count("ended an answer with an error") == logged + 1
