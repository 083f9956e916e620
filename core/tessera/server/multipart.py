"""Forms that hold files (multipart/form-data, RFC 7578), read by python-multipart as they arrive.

Starlette's own reader spools a form before a route sees it; this one passes each piece of a file on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tessera.errors import RequestError

FORM_BYTES = 2**16
"""What a form may hold besides its file."""

# It warns of what a client did wrong, which the client is told.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True)
class FormPart:
    """The head of a part. filename: None if the part is a field."""

    name: str
    filename: str | None


class FormReader:
    """Reads one form. content_type: the header of the request."""

    def __init__(self, content_type: bytes) -> None:
        """Raises RequestError."""
        kind, options = parse_options_header(content_type.strip())
        boundary = options.get(b"boundary", b"")
        if kind.strip() != b"multipart/form-data" or not boundary:
            raise RequestError("The body must be a form: multipart/form-data with a boundary.")
        self._field = self._value = self._disposition = b""
        self._parts: list[FormPart | bytes] = []
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_field,
                    "on_header_value": self._on_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_head,
                    "on_part_data": lambda data, begin, end: self._parts.append(data[begin:end]),
                    "on_end": self._end_form,
                },
            )
        except FormParserError as error:
            raise RequestError("The boundary of the form is too long.") from error

    def feed(self, data: bytes) -> list[FormPart | bytes]:
        """What the data adds: the head of each part, then pieces of its content. Raises RequestError."""
        self._parts = []
        if not self._ended:  # RFC 2046 has readers ignore what follows the last delimiter
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise RequestError("The form is malformed: it must be multipart/form-data as in RFC 7578.") from error
        return self._parts

    def end(self) -> None:
        """Raises RequestError if the form is not whole."""
        if not self._ended:
            raise RequestError("The form ended before its last delimiter.")

    def _begin(self) -> None:
        self._disposition = b""

    def _on_field(self, data: bytes, begin: int, end: int) -> None:
        self._field += data[begin:end]

    def _on_value(self, data: bytes, begin: int, end: int) -> None:
        self._value += data[begin:end]

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _end_head(self) -> None:
        """Raises RequestError."""
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or b"name" not in options:
            raise RequestError("A part of the form has no name.")
        name, filename = (options.get(key) for key in (b"name", b"filename"))
        self._parts.append(FormPart(_text(name or b""), None if filename is None else _text(filename)))

    def _end_form(self) -> None:
        self._ended = True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
