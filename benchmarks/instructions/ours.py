"""A process in which Tessera answers with its kernels in the emulator, whose instructions alone are counted. It has the
heap of tests/platforms/foreign.py. Its one argument is a Job; prints a line of JSON."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.instructions.counting import count
from benchmarks.peers.tessera import Tessera
from benchmarks.task import Task
from tessera.loader import checkpoint
from tessera_cpu import native
from tests.platforms.foreign import Library


@dataclass(frozen=True)
class Job:
    """A prompt whose answer is counted."""

    # The command that loads the library.
    emulator: list[str]
    library: str
    # The file that has its count.
    into: str
    # A Task as JSON.
    task: str
    prompt: list[int]
    # To be answered, more than one.
    tokens: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    native.FILE = Path(job.library)
    checkpoint.SMALL = sys.maxsize  # copies all weights to the heap, which is shared, as mapped files are not
    with Library([*job.emulator, job.library]) as emulated:
        native.CDLL = lambda file: emulated
        engine = Tessera(Task.from_json(job.task))
        engine.generate([job.prompt], 2, lambda keys: None)  # ops are bound
        counts, answer = [count(Path(job.into))], list[int]()
        for tokens in (1, job.tokens):
            (answer,) = engine.generate([job.prompt], tokens, lambda keys: None)
            counts.append(count(Path(job.into)))
        del engine
        gc.collect()  # what it holds is freed by the library
    before, first, whole = counts
    print(json.dumps({"decode": (whole - first) - (first - before), "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
