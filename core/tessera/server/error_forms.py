"""Errors in the form of each API, whatever part of the server raised them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.server.http import ErrorBody, header


@dataclass(frozen=True)
class Form:
    """kind: the struct of an error. write: its JSON, from the message and the HTTP status."""

    kind: type[msgspec.Struct]
    write: Callable[[str, int], bytes]


_decoder = msgspec.json.Decoder(ErrorBody)


class ErrorForms:
    """ASGI middleware: rewrites the bodies of errors on paths that begin with one of `forms`, and of requests that have
    one of the headers of `by_header`."""

    def __init__(self, app: ASGIApp, forms: Mapping[str, Form], by_header: Mapping[bytes, Form]) -> None:
        self._app = app
        self._forms = forms
        self._by_header = by_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        form = None
        if scope["type"] == "http":
            form = self._form(scope)
        await self._app(scope, receive, send if form is None else Rewriting(send, form).send)

    def _form(self, scope: Scope) -> Form | None:
        for begin, form in self._forms.items():
            if scope["path"].startswith(begin):
                return form
        return next((form for name, form in self._by_header.items() if header(scope, name) is not None), None)


class Rewriting:
    """An ASGI `send` that rewrites the body of an error."""

    def __init__(self, send: Send, form: Form) -> None:
        self._send = send
        self._form = form
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
            return
        start, self._start = self._start, None
        if start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        body = self._rewritten(message.get("body", b""), start["status"])
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        if not message.get("more_body", False):
            headers.append((b"content-length", b"%d" % len(body)))
        await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})

    def _rewritten(self, body: bytes, status: int) -> bytes:
        try:
            message = _decoder.decode(body).error.message
        except msgspec.DecodeError:
            return body  # a HEAD has none, and a page is no error
        return self._form.write(message, status)
