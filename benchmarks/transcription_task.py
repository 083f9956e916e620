"""Recordings to write down, and how each engine's process is timed. Imports only the standard library, since it runs in
each peer's environment."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.process import claim_stdout, processor_seconds

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Tried in order: the second is for windows whose answer repeats itself or is unlikely, and so on."""
MOST_COMPRESSION, LEAST_LOGPROB, MOST_NO_SPEECH = 2.4, -1.0, 0.6
"""What says that an answer repeats itself or is unlikely, and that nobody speaks: openai-whisper's."""

Line = tuple[float, float, str]
"""A segment of a transcript: where it begins and ends in seconds, and its text."""


@dataclass(frozen=True)
class TranscriptionTask:
    # The model's folder, in the engine's own format.
    weights: str
    # "float32", "bfloat16", or "int8" for weights in int8.
    precision: str
    threads: int
    # WAV files whose transcripts are wanted.
    checked: list[str]
    # WAV files that are timed.
    timed: list[str]
    # Recordings at once, of each case: the first of those that are timed.
    streams: list[int]
    rounds: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> TranscriptionTask:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


class Transcriber(Protocol):
    version: str

    def transcribe(self, paths: Sequence[str]) -> list[list[Line]]:
        """The segments of each recording. All recordings are asked for at once."""
        ...


def drive(load: Callable[[TranscriptionTask], Transcriber], *, times: bool = True) -> None:
    """The main program of an engine; its one argument is the file of the task. Writes a line of JSON with the
    transcripts when it has loaded, and, if it is timed, one for each case of each round, which it starts when it can
    read a line."""
    task = TranscriptionTask.read(Path(sys.argv[1]))
    results = claim_stdout()

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)

    began = time.monotonic()
    model = load(task)
    loaded = round(time.monotonic() - began, 3)
    say({"version": model.version, "load_s": loaded, "transcripts": model.transcribe(task.checked)})
    if times:
        for figures in timings(model, task, time.perf_counter, sys.stdin.readline):
            say(figures)


def timings(
    model: Transcriber, task: TranscriptionTask, clock: Callable[[], float], turn: Callable[[], object]
) -> Iterator[dict[str, float]]:
    """Seconds of each case of each round, and the processor's of all processes of the engine. turn: returns when the
    next may start, since another engine may be running."""
    for _ in range(task.rounds):
        for streams in task.streams:
            turn()
            model.transcribe(task.checked[:1])  # wakes threads and processes that were stopped
            began, used = clock(), processor_seconds(os.getpid())
            model.transcribe(task.timed[:streams])
            took, spent = clock() - began, processor_seconds(os.getpid()) - used
            yield {"seconds": took, "processor_s": spent}
