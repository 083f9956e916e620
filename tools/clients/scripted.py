"""A server whose model says what a script decides by the prompt: the calls that the user asks for (`Call NAME with
{...}.`), or one of the first tool, text when results are there, JSON where a grammar demands it, with values by its
schema. The server is the real one; only the engine is not. `python -m tools.clients.scripted PORT [FOLDER]`: what is
asked is written to the folder."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from tessera.engine.input_processor import Prompt
from tessera.request import RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.server.app import create_app
from tessera.server.serve import ReadyApp, serve
from tessera.server.settings import ServerSettings
from tests.server.fake_engine import FakeEngine, FakeInfo, Script
from tools.clients.contracts import MODELS
from tools.clients.recording import Recorder

CONTEXT = 400_000
TOOLS = "<|tools|>"
CALL_REQUEST = re.compile(r"Call (\S+) with (\{[^{}]*\})")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}</{{ m.role }}>{% endfor %}"
    f"{{% if tools %}}{TOOLS}{{{{ tools | tojson }}}}{{% endif %}}<assistant>"
)
HELLO = "Hello, this is scripted."
SUNNY = "It is sunny in Paris."
CITY = '{"name": "Paris", "large": true}'
SILENT = "Say nothing."
JOKE = '{"setup": "a", "punchline": "b"}'


class ScriptedEngine(FakeEngine):
    """Decides what to say when a request comes."""

    async def generate(
        self, prompt: Sequence[int] | Prompt, params: SamplingParams, request_id: str, **owner: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert self.tokenizer is not None
        text = self.tokenizer.decode(prompt.ids.tolist() if isinstance(prompt, Prompt) else prompt)
        self.script = Script(pieces=answer(text, params), hang_at=0 if SILENT in text else None)
        async for output in super().generate(prompt, params, request_id, **owner):
            yield output


def answer(prompt: str, params: SamplingParams) -> str:
    form = params.structured_outputs
    if form is not None and form.kind == "json":
        return json.dumps(sample(json.loads(form.json), text_of(prompt)))
    if form is not None and form.kind == "json_object":
        return JOKE if "punchline" in prompt else CITY
    chat, _, rest = prompt.partition(TOOLS)
    tools = [tool["function"] for tool in json.loads(rest.removesuffix("<assistant>"))] if rest else []
    answers = [tool for tool in tools if "large" in tool.get("parameters", {}).get("properties", {})]
    if answers:  # a tool that stands for the form of the answer
        return called(answers[0], chat)
    wanted, done = CALL_REQUEST.findall(chat.rpartition("<user>")[2]), chat.rpartition("<user>")[2].count("<tool>")
    if tools and done < len(wanted):
        return f"I do that.\n{call(*wanted[done])}"
    if tools and not done:
        return called(tools[0], chat)
    return SUNNY if tools else HELLO


def text_of(chat: str) -> str:
    """What the user's last message has in quotation marks."""
    found = re.search(r"'([^']+)'", chat.rpartition("<user>")[2])
    return "text" if found is None else found[1]


def called(tool: dict[str, Any], chat: str) -> str:
    return call(tool["name"], json.dumps(sample(tool.get("parameters") or {"type": "object"}, text_of(chat))))


def sample(schema: dict[str, Any], text: str, name: str = "", whole: dict[str, Any] | None = None) -> Any:
    """A value of a schema. text: of strings. name: of the property that it is for. whole: the schema with the
    definitions."""
    whole = schema if whole is None else whole
    if "$ref" in schema:
        return sample(whole["$defs"][schema["$ref"].rpartition("/")[2]], text, name, whole)
    match schema:
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": [first, *_]} | {"allOf": [first, *_]}:
            return sample(first, text, name, whole)
        case {"type": "object"}:
            return {key: sample(each, text, key, whole) for key, each in schema.get("properties", {}).items()}
        case {"type": "array"}:
            return [sample(schema.get("items", {}), text, name, whole)]
    kinds = {"integer": 3, "number": 2.5, "boolean": True, "null": None}
    return kinds.get(schema.get("type", "string"), "Paris" if name in ("city", "name") else text)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


async def ready(folder: Path | None) -> ReadyApp:
    engine: Any = ScriptedEngine(template=TEMPLATE, info=FakeInfo(max_model_len=CONTEXT))
    settings = ServerSettings(tool_call_parser="hermes", served_model_names=("scripted", *MODELS))
    app = create_app(engine, settings)
    if folder is not None:
        app.add_middleware(Recorder, folder)
    return ReadyApp(engine, app)


async def main(port: int, folder: Path | None) -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        return await serve(ready(folder), listener, ServerSettings(drain_seconds=0.1))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)))
