"""Questions and answers until the user quits: what is sent to the model, and the terminal."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Protocol, TextIO

from tessera.cli.client import AnswerDelta, Client, Message, Sampling
from tessera.cli.talk.background_loop import BackgroundLoop
from tessera.cli.talk.images import content_of, image_url
from tessera.errors import EngineDeadError, RequestError, TesseraError

EXIT = "/exit"
_COMMAND = re.compile(r"/[a-z]+")
PROMPT = "> "
MAX_CHARS = 2**23
# Answers must not move the cursor or change the window title.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Session:
    """One user at a terminal, or a single question."""

    def __init__(self, loop: BackgroundLoop, dialogue: Dialogue, terminal: Terminal) -> None:
        self._loop = loop
        self._dialogue = dialogue
        self._terminal = terminal

    def once(self, question: str) -> None:
        """Answers one question. Raises its errors."""
        self._answer(question)

    def until_end(self) -> None:
        """Answers questions until the end. An error is printed and only ends its question. Raises EngineDeadError."""
        self._terminal.note(self._dialogue.greeting)
        while (question := self._read_question()) is not None:
            if question:
                self._try(question)

    def _read_question(self) -> str | None:
        """The next question; "" if the line was a command, None at the end."""
        try:
            line = self._terminal.question().strip()
        except (EOFError, KeyboardInterrupt):
            self._terminal.note("")
            return None
        if line == EXIT:
            return None
        name, _, argument = line.partition(" ")
        if name in self._dialogue.commands:
            self._terminal.note(self._run(self._dialogue.commands[name], argument.strip()))
            return ""
        if _COMMAND.fullmatch(line):
            self._terminal.note(f"Unknown command {line}; use {', '.join([*self._dialogue.commands, EXIT])}.")
            return ""
        return line

    @staticmethod
    def _run(command: Command, argument: str) -> str:
        try:
            return command(argument)
        except RequestError as error:
            return f"error: {error.message}"

    def _try(self, question: str) -> None:
        try:
            reason = self._answer(question)
        except KeyboardInterrupt:
            self._terminal.note("\n(stopped)")
        except EngineDeadError:
            raise
        except TesseraError as error:
            self._terminal.note(f"error: {error.message}")
        else:
            if reason == "length":
                self._terminal.note("(answer cut off at its maximum length; raise it with --max-tokens)")

    def _answer(self, question: str) -> str | None:
        """Prints the answer as it arrives, and returns its finish_reason."""
        reason, last = None, "\n"
        with closing(self._loop.iterate(self._dialogue.answer(question))) as pieces:
            for piece in pieces:
                if piece.text:
                    self._terminal.answer(piece.text)
                    last = piece.text[-1]
                reason = piece.finish_reason or reason
        if last != "\n":
            self._terminal.answer("\n")
        return reason


Command = Callable[[str], str]
"""Takes what follows a command in its line, and returns a note to print. Raises RequestError."""


class Dialogue(Protocol):
    """What is sent to a model. greeting: printed at the start. commands: first words of lines that are not
    questions."""

    @property
    def greeting(self) -> str: ...

    @property
    def commands(self) -> Mapping[str, Command]: ...

    def answer(self, question: str) -> AsyncGenerator[AnswerDelta, None]: ...


class ChatSession:
    """A chat: every question is sent with the conversation so far."""

    def __init__(self, client: Client, sampling: Sampling, system: str | None, images: Sequence[str] = ()) -> None:
        """images: data URLs of those to show with the first question."""
        self._client = client
        self._sampling = sampling
        self._first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._first)
        # Data URLs of those that the next question shows.
        self._images = [*images]

    @property
    def greeting(self) -> str:
        return (
            f"Chatting with {self._client.model}. Ctrl-C stops an answer, /reset starts a new conversation, /image "
            "FILE shows an image with the next question; /exit, Ctrl-D or Ctrl-C at the prompt quits."
        )

    @property
    def commands(self) -> Mapping[str, Command]:
        return {"/reset": self._reset, "/image": self._show}

    async def answer(self, question: str) -> AsyncGenerator[AnswerDelta, None]:
        """An interrupted answer is kept as far as it got; a question without an answer is dropped."""
        said: list[str] = []
        self._messages.append({"role": "user", "content": content_of(question, self._images)})
        self._images = []
        try:
            async with aclosing(self._client.chat(self._messages, self._sampling)) as pieces:
                async for piece in pieces:
                    said.append(piece.text)
                    yield piece
        finally:
            if text := "".join(said):
                self._messages.append({"role": "assistant", "content": text})
            else:
                self._messages.pop()

    def _reset(self, argument: str) -> str:
        if argument:
            raise RequestError("/reset stands alone in its line.")
        self._messages, self._images = list(self._first), []
        return "New conversation."

    def _show(self, path: str) -> str:
        if not path:
            raise RequestError("Name a file: /image FILE.")
        self._images.append(image_url(path))
        return f"The next question shows {path}."


class Completions:
    """Completes each text independently."""

    def __init__(self, client: Client, sampling: Sampling) -> None:
        self._client = client
        self._sampling = sampling

    @property
    def greeting(self) -> str:
        return (
            f"{self._client.model} completes what you write. Ctrl-C stops it; /exit, Ctrl-D or Ctrl-C at the prompt "
            "quits."
        )

    @property
    def commands(self) -> Mapping[str, Command]:
        return {}

    def answer(self, question: str) -> AsyncGenerator[AnswerDelta, None]:
        return self._client.complete(question, self._sampling)


class Terminal:
    """Reads lines, and writes answers and notes. interactive: whether questions are typed at a terminal."""

    def __init__(self, lines: TextIO, answers: TextIO, notes: TextIO) -> None:
        self._lines = lines
        self._answers = answers
        self._notes = notes
        self._is_terminal = answers.isatty()
        self.interactive = lines.isatty()

    @classmethod
    def of_process(cls) -> Terminal:
        """Standard input, output and error; unencodable characters are replaced."""
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        return cls(sys.stdin, sys.stdout, sys.stderr)

    def question(self) -> str:
        """Reads a line. Raises EOFError at the end (Ctrl-D), or KeyboardInterrupt."""
        if self._is_terminal:
            # Importing it gives input() line editing, if Python has it. The history ends with the process.
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")
            return input(PROMPT)
        self._notes.write(PROMPT)
        self._notes.flush()
        line = self._lines.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def everything(self) -> str:
        """Reads stdin to the end, up to MAX_CHARS."""
        return self._lines.read(MAX_CHARS)

    def answer(self, text: str) -> None:
        self._answers.write(_CONTROL.sub("", text) if self._is_terminal else text)
        self._answers.flush()

    def note(self, text: str) -> None:
        self._notes.write(f"{text}\n")
        self._notes.flush()
