"""Logging, the same in every process: one line of text or one JSON object per record, on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

TEXT = "text"
JSON = "json"
FORMATS = (TEXT, JSON)


def set_up_logging(level: int | str, form: str) -> None:
    """Call once per process, before the first record. level: for Tessera's own loggers; libraries log from WARNING up.
    form: one of FORMATS."""
    handler = logging.StreamHandler(LastingStream(sys.stderr))
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("tessera").setLevel(level)


class LastingStream:
    """A text stream that survives a closed pipe: once the reader has gone, output is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop(error)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def print(self, line: str) -> None:
        self.write(f"{line}\n")
        self.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def _drop(self, error: OSError) -> None:
        """Ignores a full disk, which may have room again. A closed pipe stays closed, and buffered text would fail at
        every later write and at exit, so the stream is redirected to the null device."""
        if isinstance(error, BrokenPipeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class TextFormatter(logging.Formatter):
    """2026-01-02 03:04:05,678 INFO 4711 tessera.engine.process: [request id] message"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(name)s: %(about)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = request_id_of(record)
        record.about = f"[{request_id}] " if request_id else ""
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """time (UTC), level, pid, logger and message, plus request_id and exception if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "pid": record.process,
            "logger": record.name,
        }
        if request_id := request_id_of(record):
            entry["request_id"] = request_id
        entry["message"] = record.getMessage()
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def about(request_id: str) -> dict[str, str]:
    """Marks a log record with its request: `log.info(..., extra=about(request_id))`."""
    return {"request_id": request_id}


def request_id_of(record: logging.LogRecord) -> str:
    return getattr(record, "request_id", "")
