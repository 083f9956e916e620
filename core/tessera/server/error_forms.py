"""Errors in the form of each API, whatever part of the server raised them, and the request's id where its clients read
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.server.http import REQUEST_ID_HEADER, ErrorBody, header


@dataclass(frozen=True)
class Form:
    """kind: the struct of an error. write: its JSON, from the message and the HTTP status. request_id: a further header
    of all responses with the request's id."""

    kind: type[msgspec.Struct]
    write: Callable[[str, int], bytes]
    request_id: bytes | None = None


_decoder = msgspec.json.Decoder(ErrorBody)


class ErrorForms:
    """ASGI middleware: rewrites the bodies of errors, and adds the header that has the request's id, on paths that
    begin with one of `forms`, and for requests that have one of the headers of `by_header`."""

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
    """An ASGI `send` that rewrites a response."""

    def __init__(self, send: Send, form: Form) -> None:
        self._send = send
        self._form = form
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *self._ids(message["headers"])]
            if message["status"] >= 400:
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

    def _ids(self, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        own = self._form.request_id
        return ((own, value) for name, value in headers if own is not None and name == REQUEST_ID_HEADER)

    def _rewritten(self, body: bytes, status: int) -> bytes:
        try:
            message = _decoder.decode(body).error.message
        except msgspec.DecodeError:
            return body  # a HEAD has none, and a page is no error
        return self._form.write(message, status)
