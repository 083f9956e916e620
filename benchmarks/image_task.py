"""Images for a chat, and how each engine's process is timed. Imports only the standard library, since it runs in each
peer's environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.process import claim_stdout

QUESTION = "What does this picture show? Answer in one sentence."


@dataclass(frozen=True)
class ImageTask:
    # A folder with config.json and what processors and tokenizers read; its weights are random.
    model: str
    # torch's name of it.
    dtype: str
    threads: int
    # PNG files. The first is for a warm-up; each is shown once.
    images: list[str]
    rounds: int
    # Tokens of a step, for engines that divide work into steps.
    step_tokens: int
    # Chats that run when images arrive, the images that do, and the seconds between two of them.
    chats: int
    arrivals: int
    interval: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ImageTask:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def timed(self) -> list[str]:
        return self.images[1 : self.rounds + 1]

    @property
    def arriving(self) -> list[str]:
        return self.images[self.rounds + 1 :]


class ImageReader(Protocol):
    version: str

    def answer(self, image: str) -> None:
        """Reads an image with QUESTION and returns when the first token of the answer is there."""
        ...


def drive(load: Callable[[ImageTask], Any], beside: Callable[[Any, ImageTask], dict[str, Any]] | None = None) -> None:
    """The main program of an engine; its one argument is the file of the task. Writes a line of JSON when it has
    loaded, and one for each round, which it starts when it can read a line. beside: what is measured when all rounds
    are over, in a line of its own."""
    task = ImageTask.read(Path(sys.argv[1]))
    results = claim_stdout()

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)

    reader = load(task)
    reader.answer(task.images[0])
    say({"version": reader.version})
    for figures in first_tokens(reader, task, time.perf_counter, sys.stdin.readline):
        say(figures)
    if beside is not None:
        sys.stdin.readline()
        say(beside(reader, task))


def first_tokens(
    reader: ImageReader, task: ImageTask, clock: Callable[[], float], turn: Callable[[], object]
) -> Iterator[dict[str, float]]:
    """Seconds to the first token of each round. turn: returns when the next may start, since another engine may be
    running."""
    for image in task.timed:
        turn()
        began = clock()
        reader.answer(image)
        yield {"seconds": clock() - began}
