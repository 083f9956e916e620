"""Records what clients ask of a server, and makes of it what tests/server/recorded has: what is sent, without its
sentences. A text that is not ours becomes its length, `<N characters>`, and an id a number."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DROPPED = {"host", "content-length", "connection", "accept-encoding"}
_SHARED = ("tools", "system", "instructions")
_SHORT = 12
_IDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{24,}")
_TIMES = re.compile(r"\b1\d{12}\b")
_AGENT = re.compile(r"\(.*\) ?")
# The values of these keys, and of the properties in a schema, are the API's own words, or ours.
_API_KEYS = ("type", "role", "name", "namespace", "model", "id", "call_id", "tool_use_id", "tool_call_id", "arguments",
        "enum", "required", "format", "status", "effort", "summary", "include", "tool_choice", "prompt_cache_key",
        "user", "user_id", "encrypted_content", "const", "pattern", "$schema", "client_metadata", "input")  # fmt: skip


class Recorder:
    """ASGI middleware: each request with a body is a file of the folder, in the order in which they came."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app = app
        self._folder = folder
        self._numbers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        received: list[Message] = []

        async def recorded() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                received.append(message)
                if not message.get("more_body"):
                    self._write(scope, b"".join(part.get("body", b"") for part in received))
            return message

        await self._app(scope, recorded, send)

    def _write(self, scope: Scope, body: bytes) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        found = {
            "path": scope["path"] + (f"?{query}" if query else ""), "headers": headers, "body": json.loads(body),
        }  # fmt: skip
        (self._folder / f"{next(self._numbers):03}.json").write_text(json.dumps(found), encoding="utf-8")


def fixture(folder: Path, about: Mapping[str, str], answers: Sequence[Any], ours: Collection[str]) -> dict[str, Any]:
    """The recorded requests. about: the client and where the requests are from. answers: the model's to each request,
    texts or calls. ours: texts that are kept."""
    requests = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    for request, answer in zip(requests, answers, strict=True):
        kept = {name: value for name, value in request["headers"].items() if name not in _DROPPED}
        request["headers"] = {name: _AGENT.sub("", value).strip() for name, value in kept.items()}
        request["body"], request["said"] = stripped(request["body"], ours), answer
    bodies = [request["body"] for request in requests]
    shared = {name: value for name, value in bodies[0].items() if name in _SHARED and _same(bodies, name)}
    for request in requests:
        request["body"] = {name: value for name, value in request["body"].items() if name not in shared}
    whole = {**about, "shared": shared, "requests": requests}
    if _same(requests, "headers"):
        whole = {**about, "headers": requests[0]["headers"], "shared": shared, "requests": requests}
        for request in requests:
            del request["headers"]
    return whole


def written(whole: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """A fixture as JSON with a tool, a message or a field to a line. paths: of this machine, with what replaces
    them."""
    text = json.dumps(whole, ensure_ascii=False)
    for path, instead in paths.items():
        text = text.replace(path, instead)
    return "{\n" + ",\n".join(_lines(json.loads(_TIMES.sub("0", _numbered(text))), 0)) + "\n}\n"


def _same(members: Sequence[Mapping[str, Any]], name: str) -> bool:
    return all(each.get(name, ...) == members[0].get(name) for each in members)


def stripped(value: Any, ours: Collection[str], key: str = "") -> Any:
    """A JSON value with the lengths of texts in place of texts. key: what it is the value of."""
    match value:
        case dict():
            inner = {name: stripped(each, ours, "enum" if key == "client_metadata" else name)
                     for name, each in value.items()}  # fmt: skip
            return dict(sorted(inner.items())) if key == "client_metadata" else inner
        case list():
            return [stripped(each, ours, key) for each in value]
        case str() if key not in _API_KEYS and value not in ours and len(value) > _SHORT:
            return f"<{len(value)} characters>"
    return value


def _numbered(text: str) -> str:
    """Ids as numbers of the same length, each the same wherever it stands."""
    known: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        identifier = match[0]
        digits = f"{len(known) + 1:0{len(identifier) - identifier.count('-')}}"
        return known.setdefault(identifier, _with_dashes(digits) if "-" in identifier else digits)

    return _IDS.sub(number, text)


def _with_dashes(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _lines(members: Mapping[str, Any], depth: int) -> Iterable[str]:
    pad = " " * depth
    for name, value in members.items():
        begin = f"{pad}{json.dumps(name)}: "
        if depth < 3 and isinstance(value, dict) and value:
            yield begin + "{\n" + ",\n".join(_lines(value, depth + 1)) + f"\n{pad}}}"
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield begin + "[\n" + ",\n".join(_item(each, depth + 1) for each in value) + f"\n{pad}]"
        else:
            yield begin + json.dumps(value, ensure_ascii=False)


def _item(value: Any, depth: int) -> str:
    pad = " " * depth
    if isinstance(value, dict) and "body" in value:
        return f"{pad}{{\n" + ",\n".join(_lines(value, depth + 1)) + f"\n{pad}}}"
    return pad + json.dumps(value, ensure_ascii=False)
