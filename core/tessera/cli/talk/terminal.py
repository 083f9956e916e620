"""The two ends a user sits at: lines in, answers out, notes beside them."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from typing import TextIO

PROMPT = "> "
MAX_CHARS = 2**23
# What would move the cursor, rename the window or worse: an answer is text, whoever wrote it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Terminal:
    """interactive: questions come from a terminal, one after the other."""

    def __init__(self, given: TextIO, answers: TextIO, notes: TextIO) -> None:
        self._given = given
        self._answers = answers
        self._notes = notes
        self._shown = answers.isatty()
        self.interactive = given.isatty()

    @classmethod
    def of_process(cls) -> Terminal:
        """Standard input, output and error. What they cannot encode is replaced rather than an error."""
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        return cls(sys.stdin, sys.stdout, sys.stderr)

    def question(self) -> str:
        """A line. Raises EOFError at the end (Ctrl-D), KeyboardInterrupt."""
        if self._shown:
            # Loading it gives input() a line editor, where Python has one. Its history ends with the process.
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")
            return input(PROMPT)
        self._notes.write(PROMPT)
        self._notes.flush()
        line = self._given.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def everything(self) -> str:
        """All of a pipe, up to MAX_CHARS."""
        return self._given.read(MAX_CHARS)

    def answer(self, text: str) -> None:
        self._answers.write(_CONTROL.sub("", text) if self._shown else text)
        self._answers.flush()

    def note(self, text: str) -> None:
        self._notes.write(f"{text}\n")
        self._notes.flush()
