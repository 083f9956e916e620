"""A page that can be followed: its blocks in order, and a shell in which they are carried out.

A `console` block has commands after "$ " (continued after "> ") and, below each, lines that it must print in this order
with "..." for what varies; its commands end with 0, or with what `exit=N` beside its name says. A `python` block with a
`title="FILE"` is written into that file, as seen from where the shell is. Blocks of other kinds are not carried out.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS = 120.0  # for one command
_FENCE = re.compile(r"```(?P<kind>\w*)(?P<rest>.*)")
_MARK = "--- step ended with"


class StepError(AssertionError):
    """A step of a page that did not do what the page says."""


@dataclass(frozen=True)
class Block:
    """line: of its first line in the page, from 1."""

    kind: str
    facts: Mapping[str, str]
    lines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Command:
    """What is typed, the lines that must be printed, and the exit code."""

    text: str
    shown: tuple[str, ...]
    code: int
    line: int


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks, in order. Raises StepError where one is not closed."""
    opened: re.Match[str] | None = None
    held: list[str] = []
    begun = 0
    for number, line in enumerate(page.splitlines(), 1):
        if opened is None:
            opened, held, begun = _FENCE.fullmatch(line), [], number + 1
        elif line == "```":
            facts = dict(re.findall(r'(\w+)="?([^"\s]+)"?', opened["rest"]))
            yield Block(opened["kind"], facts, tuple(held), begun)
            opened = None
        else:
            held.append(line)
    if opened is not None:
        raise StepError(f"the block of line {begun - 1} is not closed")


def commands(block: Block) -> list[Command]:
    """Of a console block."""
    found: list[tuple[list[str], list[str], int]] = []
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("$ "):
            found.append(([line.removeprefix("$ ")], [], number))
        elif not found:
            raise StepError(f"line {number}: a console block begins with a command")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line.removeprefix("> "))
        else:
            found[-1][1].append(line)
    code = int(block.facts.get("exit", 0))
    return [Command("\n".join(text), tuple(shown), code, number) for text, shown, number in found]


def missing(shown: tuple[str, ...], said: list[str]) -> str | None:
    """The first of the lines shown that was not said, in order; spaces count once."""
    left = iter(said)
    for line in shown:
        pattern = re.compile(".*".join(re.escape(part) for part in " ".join(line.split()).split("...")))
        if not any(pattern.fullmatch(" ".join(one.split())) for one in left):
            return line
    return None


class Shell:
    """One bash for all commands, so that `cd` and `&` do what they do at a terminal. folder: where it is."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def __enter__(self) -> Self:
        # A server in the background writes its log between the words of another command, so each command but those that
        # stay in the background has a file of its own.
        descriptor, name = tempfile.mkstemp(prefix="step-")
        os.close(descriptor)
        self.output = Path(name)
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=dict(self.environment),
            text=True,
            start_new_session=True,  # so that all that it started can be ended with it
        )
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.listener.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.output.unlink()

    def run(self, command: Command) -> None:
        """Raises StepError. A command that ends in & has until then to print what is shown."""
        stays = command.text.endswith("&")
        target = "" if stays else f">{shlex.quote(str(self.output))} 2>&1"
        self._type(f"{{\n{command.text}\n}} </dev/null {target}\nprintf '\\n{_MARK} %s %s\\n' $? \"$PWD\"\n")
        said = list(self._until(command))
        code, folder = said.pop().removeprefix(_MARK).split(maxsplit=1)
        self.folder = Path(folder)
        if not stays:
            said = self._output()
        deadline = time.monotonic() + SECONDS
        while stays and missing(command.shown, said) is not None:
            try:
                said.append(self.said.get(timeout=max(deadline - time.monotonic(), 0)))
            except queue.Empty:
                break
        lost = missing(command.shown, said)
        if lost is not None:
            raise StepError(self._told(command, f"did not print: {lost}", said))
        if int(code) != command.code:
            raise StepError(self._told(command, f"ended with {code}, not {command.code}", said))

    def _until(self, command: Command) -> Iterator[str]:
        """What is printed, to the mark of its end."""
        said: list[str] = []
        while not said or not said[-1].startswith(_MARK):
            try:
                said.append(self.said.get(timeout=SECONDS))
            except queue.Empty:
                said += self._output()
                raise StepError(self._told(command, f"printed nothing more for {SECONDS:.0f} s", said)) from None
            yield said[-1]

    def _output(self) -> list[str]:
        """Of the last command that did not stay in the background."""
        return self.output.read_text(encoding="utf-8", errors="replace").splitlines()

    def _type(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(line.rstrip("\n"))

    @staticmethod
    def _told(command: Command, problem: str, said: list[str]) -> str:
        listed = "\n".join(f"  | {line}" for line in said[-40:])
        return f"line {command.line}: $ {command.text}\n{problem}\nIt printed:\n{listed}"


def follow(page: str, shell: Shell) -> int:
    """Carries out all steps in order; how many there were. Raises StepError with the number and the line of the first
    that is not as the page says."""
    number = 0
    for block in blocks(page):
        try:
            if block.kind == "console":
                for command in commands(block):
                    number += 1
                    shell.run(command)
            elif "title" in block.facts:
                number += 1
                path = shell.folder / block.facts["title"]
                if not path.is_file():
                    raise StepError(f"line {block.line}: there is no file {block.facts['title']} to write")
                path.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        except StepError as error:
            raise StepError(f"step {number}, {error}") from None
    return number
