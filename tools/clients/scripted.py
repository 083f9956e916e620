"""A server whose model says what a script decides by the prompt: a call of the first tool, text when results are there,
JSON where a grammar demands it. The server is the real one; only the engine is not."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tessera.request import RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.server.app import create_app
from tessera.server.serve import ReadyApp, serve
from tessera.server.settings import ServerSettings
from tests.server.fake_engine import FakeEngine, FakeInfo, Script

CONTEXT = 100_000
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}</{{ m.role }}>{% endfor %}"
    "{% if tools %}TOOLS{{ tools | tojson }}{% endif %}<assistant>"
)
HELLO = "Hello, this is scripted."
SUNNY = "It is sunny in Paris."
CITY = '{"name": "Paris", "large": true}'


class ScriptedEngine(FakeEngine):
    """Decides what to say when a request comes."""

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, request_id: str, **given: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        assert self.tokenizer is not None
        self._admit(prompt, params)
        self.script = Script(pieces=said(self.tokenizer.decode(prompt), params))
        async for output in super().generate(prompt, params, request_id, **given):
            yield output


def said(prompt: str, params: SamplingParams) -> str:
    asked = params.structured_outputs
    if asked is not None and asked.kind in ("json", "json_object"):
        return CITY
    chat, _, rest = prompt.partition("TOOLS")
    tools = [tool["function"] for tool in json.loads(rest.removesuffix("<assistant>"))] if rest else []
    answers = [tool for tool in tools if "large" in tool.get("parameters", {}).get("properties", {})]
    if answers:  # a tool that stands for the form of the answer
        return call(answers[0]["name"], CITY)
    if tools and "<tool>" not in chat.rpartition("<user>")[2]:
        return call(tools[0]["name"], '{"city": "Paris"}')
    return SUNNY if tools else HELLO


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


async def ready() -> ReadyApp:
    engine: Any = ScriptedEngine(template=TEMPLATE, info=FakeInfo(max_model_len=CONTEXT))
    settings = ServerSettings(tool_call_parser="hermes", served_model_names=("scripted",))
    return ReadyApp(engine, create_app(engine, settings))


async def main(port: int) -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        return await serve(ready(), listener, ServerSettings(drain_seconds=0.1))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
