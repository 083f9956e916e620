"""The results of a batch as they come, a line of JSON each. What is in the files already is not run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path
from typing import IO

import msgspec

from tessera.errors import RequestError
from tessera.server.batches.protocol import BatchUsage, RequestCounts, ResultLine
from tessera.server.disk import writing
from tessera.server.sse import escaped

_BEGIN = b'{"id":"batch_req_'
"""How each line begins, by which a line that was cut off is known as one."""
_RESULT = msgspec.json.Decoder(ResultLine)


class BatchResults:
    """Those of one batch, in files that are made with their first lines. Its methods may be called from any thread."""

    def __init__(self, output: Path, errors: Path) -> None:
        """Reads what is there; a last line that was cut off is removed. output: the file of answers. errors: that of
        requests that failed, which may be the same. Raises RequestError for a file of something else, OSError."""
        # the custom_id of each
        self.done: set[str] = set()
        self.completed = self.failed = 0
        # in bytes
        self.size = 0
        self.usage = BatchUsage()
        self._paths = {False: output, True: errors}
        self._files: dict[Path, IO[bytes]] = {}
        self._lock = threading.Lock()
        self._closed = False
        for path in dict.fromkeys((output, errors)):
            for result, size in _read_results(path):
                self._count(result, size)

    def add(self, result: ResultLine) -> None:
        """Writes a result, unless its request has one already. Raises DiskFullError, OSError; then nothing is
        written."""
        line = escaped(msgspec.json.encode(result)) + b"\n"
        with self._lock:
            if self._closed or result.custom_id in self.done:
                return
            path = self._paths[failed(result)]
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = path.open("ab", buffering=0)
            _append(file, line)
            self._count(result, len(line))

    def counts(self, total: int) -> RequestCounts:
        return RequestCounts(total, self.completed, self.failed)

    def close(self) -> None:
        """Nothing is written after this."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                file.close()

    def _count(self, result: ResultLine, size: int) -> None:
        self.size += size
        self.done.add(result.custom_id)
        if failed(result):
            self.failed += 1
        else:
            self.completed += 1
            _add_usage(self.usage, result)


def _append(file: IO[bytes], line: bytes) -> None:
    """The whole line or nothing: a disk that fills up takes a part of it."""
    before, written = file.seek(0, SEEK_END), 0
    try:
        with writing("A result of a batch"):
            while written < len(line):
                written += file.write(line[written:])
    except BaseException:
        file.truncate(before)
        raise


def failed(result: ResultLine) -> bool:
    return result.response is None or result.response.status_code >= 400


def _read_results(path: Path) -> Iterator[tuple[ResultLine, int]]:
    """The results in a file, each with its bytes. Raises RequestError, OSError."""
    if not path.exists():
        return
    with path.open("rb") as file:
        size = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and line[: len(_BEGIN)] == _BEGIN[: len(line)]:
                break
            try:
                yield _RESULT.decode(line), len(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise RequestError(f"Line {number} of '{path}' is not a result; name another output file.") from None
            size += len(line)
        else:
            return
    with path.open("r+b") as file:
        file.truncate(size)


# ---- usage -----------------------------------------------------------------------------------------------------------


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _ResultUsage(msgspec.Struct):
    """The usage of completions and of responses, whose names differ."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _ResultBody(msgspec.Struct):
    usage: _ResultUsage | None = None


_ANSWER = msgspec.json.Decoder(_ResultBody)


def _add_usage(all_: BatchUsage, result: ResultLine) -> None:
    assert result.response is not None
    usage = _ANSWER.decode(result.response.body).usage
    if usage is None:
        return
    all_.input_tokens += usage.prompt_tokens + usage.input_tokens
    all_.output_tokens += usage.completion_tokens + usage.output_tokens
    all_.total_tokens += usage.total_tokens
    for details in (usage.prompt_tokens_details, usage.input_tokens_details):
        all_.input_tokens_details.cached_tokens += 0 if details is None else details.cached_tokens
    for details in (usage.completion_tokens_details, usage.output_tokens_details):
        all_.output_tokens_details.reasoning_tokens += 0 if details is None else details.reasoning_tokens
