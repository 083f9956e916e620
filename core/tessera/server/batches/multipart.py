"""Forms that hold files (multipart/form-data, RFC 7578), read as they arrive.

Starlette's own reader needs a further package and spools a form before a route sees it; this one passes each piece of a
file on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tessera.errors import RequestError

FORM_BYTES = 2**16
"""What a form may hold besides its file."""
_HEAD_BYTES = 2**13
_BOUNDARY = re.compile(
    rb"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE
)
_DISPOSITION = re.compile(rb"content-disposition\s*:\s*form-data\s*;(.*)", re.IGNORECASE)
_PARAMETER = re.compile(rb"""\s*([a-z]{1,32})=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))\s*(?:;|$)""", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """The head of a part. filename: None if the part is a field."""

    name: str
    filename: str | None


class FormReader:
    """Reads one form. content_type: the header of the request."""

    def __init__(self, content_type: bytes) -> None:
        """Raises RequestError."""
        found = _BOUNDARY.match(content_type.strip())
        if found is None:
            raise RequestError("The body must be a form: multipart/form-data with a boundary.")
        self._delimiter = b"\r\n--" + (found[1] or found[2])
        # The first delimiter may stand at the very beginning, where no line ends.
        self._held = b"\r\n"
        self._read = self._content
        self._in_part = False
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """What the data adds: the head of each part, then pieces of its content. Raises RequestError."""
        if self._ended:
            return  # RFC 2046 has readers ignore what follows the last delimiter
        self._held += data
        going_on = True
        while going_on:
            going_on = False
            for found in self._read():
                going_on = True
                if found:
                    yield found

    def end(self) -> None:
        """Raises RequestError if the form is not whole."""
        if not self._ended:
            raise RequestError("The form ended before its last delimiter.")

    # Each of these takes what it can from what is held, and yields something, if only b"", if the next one is to go on.

    def _content(self) -> Iterator[Part | bytes]:
        content, delimiter, rest = self._held.partition(self._delimiter)
        if delimiter:
            self._held, self._read = rest, self._after_delimiter
            yield content if self._in_part else b""
        else:
            kept = len(self._delimiter) - 1  # which may begin one
            content, self._held = self._held[:-kept], self._held[-kept:]
            if self._in_part and content:
                yield content

    def _after_delimiter(self) -> Iterator[Part | bytes]:
        if len(self._held) < 2:
            return
        follows, self._held = self._held[:2], self._held[2:]
        if follows == b"--":
            self._ended, self._held = True, b""
        elif follows == b"\r\n":
            # A part may have no headers at all; its head then ends where it begins.
            self._held, self._read = b"\r\n" + self._held, self._head
            yield b""
        else:
            raise RequestError("The form has a delimiter that does not end its line.")

    def _head(self) -> Iterator[Part | bytes]:
        head, end, rest = self._held.partition(b"\r\n\r\n")
        if len(head) > _HEAD_BYTES:
            raise RequestError(f"The headers of a part of the form must be at most {_HEAD_BYTES} bytes.")
        if end:
            self._held, self._read, self._in_part = rest, self._content, True
            yield _part_of(head)


def _part_of(head: bytes) -> Part:
    """Raises RequestError."""
    for line in head.split(b"\r\n"):
        if found := _DISPOSITION.match(line):
            given = {
                name.lower(): re.sub(rb"\\(.)", rb"\1", quoted or plain)
                for name, quoted, plain in _PARAMETER.findall(found[1])
            }
            filename = given.get(b"filename")
            name = given.get(b"name", b"").decode("utf-8", "replace")
            return Part(name, None if filename is None else filename.decode("utf-8", "replace"))
    raise RequestError("A part of the form has no name.")
