"""Lines of the log, as text and as JSON, and a log that nobody reads."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from tessera.log import JsonFormatter, LastingStream, TextFormatter, about


def record(message="hello %s", *arguments, error=None, **extra):
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.getLogger("tessera.x").makeRecord(
        "tessera.x", logging.WARNING, "x.py", 1, message, arguments, info, extra=extra
    )
    made.process = 7
    return made


def raised():
    try:
        raise ValueError("what happened")
    except ValueError as error:
        return error


def test_text():
    line = TextFormatter().format(record("hello %s", "you"))
    assert line.endswith(" WARNING 7 tessera.x: hello you")
    assert TextFormatter().format(record("ended", **about("abc"))).endswith(" WARNING 7 tessera.x: [abc] ended")
    assert "ValueError: what happened" in TextFormatter().format(record("x", error=raised()))


def test_json():
    entry = json.loads(JsonFormatter().format(record("two\nlines", **about("abc"))))
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "WARNING", "pid": 7, "logger": "tessera.x", "request_id": "abc", "message": "two\nlines"
    }  # fmt: skip
    line = JsonFormatter().format(record("x", error=raised()))
    assert "\n" not in line
    assert "ValueError: what happened" in json.loads(line)["exception"]
    assert "request_id" not in json.loads(line)


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_full_disk_loses_the_line_and_nothing_else():
    LastingStream(Full()).print("lost")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_closed_pipe_ends_nothing_and_the_exit_code_is_the_programs(form):
    program = (
        "import logging, sys, warnings; from tessera.log import set_up_logging\n"
        f"set_up_logging('INFO', {form!r})\n"
        "log = logging.getLogger('tessera')\n"
        "log.info('one'); sys.stdin.read()\n"
        "for _ in range(10_000): log.info('x' * 100)\n"
        "print('lived', flush=True)"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    assert b"one" in os.read(reader, 1000)
    os.close(reader)
    output, _ = process.communicate()
    assert (process.returncode, output) == (0, b"lived\n")
