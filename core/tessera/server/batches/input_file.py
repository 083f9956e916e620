"""The input file of a batch: a line of JSON for each request, checked as a whole before any of them runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tessera.errors import RequestError
from tessera.server.batches.protocol import BatchError, RequestLine
from tessera.server.decode import decoded
from tessera.server.settings import Limits

MAX_ERRORS = 100
"""Errors that are listed; there may be more."""
ENVELOPE_BYTES = 2**16
"""What a line may hold besides the body of its request."""
_BOM = b"\xef\xbb\xbf"
_LINE = msgspec.json.Decoder(RequestLine)


class _LineBody(msgspec.Struct):
    model: str | None = None


_BODY = msgspec.json.Decoder(_LineBody)


def named_model(line: RequestLine) -> str | None:
    """The model that a request names; None if it names none, or its body is wrong, which its answer will say."""
    try:
        return _BODY.decode(line.body).model
    except (msgspec.DecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """A request of a file. model: that it names; "" for none. offset, size: where its line lies, in bytes."""

    custom_id: str
    model: str
    offset: int
    size: int


@dataclass(frozen=True)
class InputFile:
    path: Path
    entries: Sequence[RequestEntry]

    @classmethod
    def read(cls, path: Path, urls: Collection[str], limits: Limits) -> tuple[InputFile, list[BatchError]]:
        """The file, and what is wrong with its lines: it can be used if there is nothing. urls: those that lines may
        have. Raises OSError."""
        reading = _Reading(urls, limits)
        for number, offset, line in _lines(path, limits.body_bytes + ENVELOPE_BYTES):
            if not reading.add(number, offset, line):
                break
        if not reading.entries and not reading.errors:
            reading.errors.append(BatchError("empty_file", "The file has no requests."))
        return cls(path, reading.entries), reading.errors

    def line(self, entry: RequestEntry) -> RequestLine:
        """Reads it anew, so that the bodies of all requests are never held together. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(entry.offset)
            return _LINE.decode(file.read(entry.size))


def _lines(path: Path, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, line without its end) of each line that is not blank; a longer one than max_bytes has its
    first max_bytes + 1 bytes."""
    with path.open("rb") as file:
        number, offset = 0, 0
        if file.read(len(_BOM)) == _BOM:
            offset = len(_BOM)
        file.seek(offset)
        while line := file.readline(max_bytes + 1):
            number += 1
            begun, whole = offset, line
            while not line.endswith(b"\n") and (line := file.readline(max_bytes)):
                offset += len(line)
            offset += len(whole)
            if whole.strip():
                yield number, begun, whole.rstrip(b"\r\n") if len(whole) <= max_bytes else whole


class _Reading:
    """What is found line by line."""

    def __init__(self, urls: Collection[str], limits: Limits) -> None:
        self.entries: list[RequestEntry] = []
        self.errors: list[BatchError] = []
        self._urls = urls
        self._limits = limits
        self._seen: dict[str, int] = {}

    def add(self, number: int, offset: int, line: bytes) -> bool:
        """Whether to go on."""
        if len(self.entries) >= self._limits.batch_lines:
            most = self._limits.batch_lines
            self.errors.append(BatchError("too_many_tasks", f"A batch has at most {most} requests.", number))
            return False
        error = self._error_of(number, line)
        if error is None:
            read = _LINE.decode(line)
            self._seen[read.custom_id] = number
            self.entries.append(RequestEntry(read.custom_id, named_model(read) or "", offset, len(line)))
        else:
            error.line = number
            self.errors.append(error)
        return len(self.errors) < MAX_ERRORS

    def _error_of(self, number: int, line: bytes) -> BatchError | None:
        limits = self._limits
        if len(line) > limits.body_bytes + ENVELOPE_BYTES:
            return BatchError("invalid_request", f"The line is longer than {limits.body_bytes} bytes.")
        try:
            asked = decoded(_LINE, line)
        except RequestError as error:
            code = "invalid_json_line" if error.param is None else "invalid_request"
            return BatchError(code, error.message.replace("The body", "The line", 1), param=error.param)
        if not 1 <= len(asked.custom_id) <= limits.custom_id_chars:
            text = f"custom_id must be 1 to {limits.custom_id_chars} characters."
            return BatchError("invalid_custom_id", text, param="custom_id")
        if asked.custom_id in self._seen:
            text = f"The custom_id is that of line {self._seen[asked.custom_id]} too; each must be another."
            return BatchError("duplicate_custom_id", text, param="custom_id")
        if asked.method != "POST":
            return BatchError("invalid_method", "method must be POST.", param="method")
        if asked.url not in self._urls:
            what = "the endpoint of the batch" if len(self._urls) == 1 else f"one of {', '.join(self._urls)}"
            return BatchError("invalid_url", f"url must be {what}.", param="url")
        if not bytes(asked.body).startswith(b"{"):
            return BatchError("invalid_request", "body must be an object.", param="body")
        if len(memoryview(asked.body)) > limits.body_bytes:
            return BatchError("invalid_request", f"body must be at most {limits.body_bytes} bytes.", param="body")
        return None
