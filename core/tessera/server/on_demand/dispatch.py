"""Hands each request to the model that it names, once that is loaded."""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.errors import NotFoundError, printable
from tessera.server.adapters import LOAD, UNLOAD
from tessera.server.decode import decoded
from tessera.server.http import header, read_body, unless_gone
from tessera.server.keys import check_admin, check_allows
from tessera.server.multipart import FormPart, FormReader
from tessera.server.ollama.chat import LATEST
from tessera.server.on_demand.hosted_model import HostedModel
from tessera.server.on_demand.hosted_models import HostedModels
from tessera.server.unserved import why_not

STORED = ("/v1/responses", "/v1/conversations", "/v1/chat/completions", "/chat/completions")
"""How the paths begin of what all models keep together, which the first one gives back."""
_OLLAMA = "/api/"
_FORM = b"multipart/form-data"
_MODEL = "model"


class _Named(msgspec.Struct):
    model: str | None = None


class _AdapterNamed(msgspec.Struct):
    """lora_name: of an adapter that goes, which says whose it is."""

    model: str | None = None
    lora_name: str | None = None


class _OllamaNamed(msgspec.Struct):
    """name: what older clients call it."""

    model: str | None = None
    name: str | None = None


class ModelDispatch:
    """The ASGI application of all routes that ask a model. A request that names none is for the first one."""

    def __init__(self, models: HostedModels) -> None:
        self.absent: ASGIApp = _absent
        """Answers what no model has a route for."""
        self._models = models
        self._decoder = msgspec.json.Decoder(_Named)
        self._adapter_decoder = msgspec.json.Decoder(_AdapterNamed)
        self._ollama_decoder = msgspec.json.Decoder(_OllamaNamed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method != "POST" and not path.startswith(STORED):
            # Nobody who looks around loads a model.
            await self.absent(scope, receive, send)
            return
        if path in (LOAD, UNLOAD):
            check_admin(scope)  # before a model is loaded for it
        body = await read_body(receive) if method == "POST" else b""
        name = self._name(scope, body)
        model = self._models.find(name)
        check_allows(scope, name or model.name)
        if not model.is_ready:
            await unless_gone(receive, self._wait(model))
        async with self._models.use(model) as loaded:
            await loaded.app(scope, _again(body, receive), send)

    async def _wait(self, model: HostedModel) -> None:
        """Raises NotLoadedError."""
        async with self._models.use(model):
            pass

    def _name(self, scope: Scope, body: bytes) -> str | None:
        """Raises RequestError for a body that cannot be read."""
        kind = header(scope, b"content-type") or b""
        if kind.strip().lower().startswith(_FORM):
            return _of_form(kind, body)
        if scope["path"] in (LOAD, UNLOAD):
            return self._adapters_model(scope, body)
        if scope["method"] != "POST" or not body or why_not(scope["path"]) is not None:
            return None
        if not scope["path"].startswith(_OLLAMA):
            return decoded(self._decoder, body).model
        named = decoded(self._ollama_decoder, body)
        name = named.name if named.model is None else named.model
        return name if name is None or name in self._models.models else name.removesuffix(LATEST)

    def _adapters_model(self, scope: Scope, body: bytes) -> str | None:
        """Raises NotFoundError, RequestError."""
        named = decoded(self._adapter_decoder, body)
        if scope["path"] == LOAD or named.lora_name is None:
            return named.model
        if not self._models.has(named.lora_name):
            raise NotFoundError(
                f"There is no adapter '{printable(named.lora_name)}'.", param="lora_name", code="model_not_found"
            )
        return self._models.find(named.lora_name).name


async def _absent(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFoundError("There is no such path.", code="unknown_url")


def _of_form(kind: bytes, body: bytes) -> str | None:
    """The field `model`. Raises RequestError."""
    reader, name, value = FormReader(kind), "", b""
    for part in reader.feed(body):
        if isinstance(part, FormPart):
            name = part.name
        elif name == _MODEL:
            value += part
    reader.end()
    return value.decode("utf-8", "replace") or None


def _again(body: bytes, receive: Receive) -> Receive:
    """An ASGI `receive` that gives a body that has been read, and then goes on."""
    unread: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def again() -> Message:
        nonlocal unread
        message, unread = unread, None
        return await receive() if message is None else message

    return again
