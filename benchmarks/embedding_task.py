"""Texts to embed, and how each engine's process is timed. Imports only the standard library, since it runs in each
peer's environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from benchmarks.process import claim_stdout


@dataclass(frozen=True)
class EmbeddingTask:
    # Folder of the model, as sentence-transformers writes it.
    model: str
    # The same model in the peer's own format; otherwise the folder.
    weights: str
    dtype: str
    threads: int
    # Texts by their number of tokens; of one number, all texts have exactly as many.
    texts: dict[int, list[str]]
    # Texts of a call.
    batches: list[int]
    rounds: int
    # Seconds that a case is measured at least.
    seconds: float

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Tokens of a text and texts of a call, in the order in which they are measured."""
        return [(tokens, batch) for tokens in self.texts for batch in self.batches]

    def calls(self, tokens: int, batch: int) -> list[list[str]]:
        """All texts of that many tokens, in calls of one size; what is left over is dropped."""
        texts = self.texts[tokens]
        return [texts[start : start + batch] for start in range(0, len(texts) - batch + 1, batch)]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> EmbeddingTask:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**fields, "texts": {int(tokens): texts for tokens, texts in fields["texts"].items()}})


class Embedder(Protocol):
    version: str

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of length 1 for each text, as one call."""
        ...


def drive(load: Callable[[EmbeddingTask], Embedder]) -> None:
    """The main program of an engine; its one argument is the file of the task. Writes a line of JSON with the vectors
    of all texts when it has loaded, and one for each case of each round, which it starts when it can read a line."""
    task = EmbeddingTask.read(Path(sys.argv[1]))
    results = claim_stdout()

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)

    began = time.monotonic()
    embedder = load(task)
    loaded = round(time.monotonic() - began, 3)
    largest = max(task.batches)
    vectors = {
        tokens: [vector for call in task.calls(tokens, largest) for vector in embedder.embed(call)]
        for tokens in task.texts
    }
    say({"version": embedder.version, "load_s": loaded, "vectors": vectors})
    for rate in rates(embedder, task, time.perf_counter, sys.stdin.readline):
        say({"rate": rate})


def rates(
    embedder: Embedder, task: EmbeddingTask, clock: Callable[[], float], turn: Callable[[], object]
) -> Iterator[float]:
    """Texts a second of each case of each round. turn: returns when the next may start, since another engine may be
    running."""
    for _ in range(task.rounds):
        for tokens, batch in task.cases:
            turn()
            calls = cycle(task.calls(tokens, batch))
            embedder.embed(next(calls))  # allocates memory, and wakes threads that were stopped
            done, began = 0, clock()
            while (took := clock() - began) < task.seconds or not done:
                done += len(embedder.embed(next(calls)))
            yield done / took
