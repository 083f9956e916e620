"""Question and answer until the user leaves."""

from __future__ import annotations

import re
from contextlib import closing

from tessera.cli.talk.background_loop import BackgroundLoop
from tessera.cli.talk.dialogue import Dialogue
from tessera.cli.talk.terminal import Terminal
from tessera.errors import EngineDeadError, TesseraError

EXIT = "/exit"
_COMMAND = re.compile(r"/[a-z]+")


class Session:
    """One user at a terminal, or one question."""

    def __init__(self, loop: BackgroundLoop, dialogue: Dialogue, terminal: Terminal) -> None:
        self._loop = loop
        self._dialogue = dialogue
        self._terminal = terminal

    def once(self, question: str) -> None:
        """Answers and ends. Raises what went wrong."""
        self._answer(question)

    def until_end(self) -> None:
        """What goes wrong with a question is said, and the next may be asked. Raises EngineDeadError."""
        self._terminal.note(self._dialogue.greeting)
        while (question := self._asked()) is not None:
            if question:
                self._try(question)

    def _asked(self) -> str | None:
        """A question, "" where there is none this time, None at the end."""
        try:
            line = self._terminal.question().strip()
        except (EOFError, KeyboardInterrupt):
            self._terminal.note("")
            return None
        if line == EXIT:
            return None
        if line in self._dialogue.commands:
            self._terminal.note(self._dialogue.commands[line]())
            return ""
        if _COMMAND.fullmatch(line):
            self._terminal.note(f"There is no {line}; there is {', '.join([*self._dialogue.commands, EXIT])}.")
            return ""
        return line

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
                self._terminal.note("(the answer has reached its most tokens; --max-tokens changes that)")

    def _answer(self, question: str) -> str | None:
        """Shows it as it comes; its finish_reason."""
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
