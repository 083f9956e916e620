"""What every engine is asked to do, in a process of its own: load, then for each batch size answer the same kind of
prompts with one token and with many. Imports the standard library alone, since it runs in each peer's environment."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TextIO


@dataclass(frozen=True)
class Task:
    """model: its folder. weights: what the driver loads, the folder itself unless the peer needs a converted copy.
    input, output: tokens of each prompt and of each answer. platform: of Tessera, "" for the installed one."""

    model: str
    weights: str
    dtype: str
    input: int
    output: int
    batches: Sequence[int]
    vocab: int
    threads: int
    seed: int
    platform: str = ""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class Engine(Protocol):
    version: str

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        """Answers all prompts as one batch, greedily, each with that many tokens whatever they are; returns how many
        each got."""
        ...


def drive(load: Callable[[Task], Engine]) -> None:
    """The main program of a driver: the task is the one argument, the answer one line of JSON for each batch size."""
    task = Task(**json.loads(sys.argv[1]))
    results = _claim_stdout()
    began = time.perf_counter()
    engine = load(task)
    seconds = time.perf_counter() - began
    for result in measure(engine, task, time.perf_counter):
        line = {**result, "load_s": round(seconds, 3), "peak_bytes": peak_bytes(), "version": engine.version}
        print(json.dumps(line), file=results, flush=True)


def measure(engine: Engine, task: Task, clock: Callable[[], float]) -> Iterator[dict[str, float]]:
    """For each batch size the seconds of one token and of all, and the rates that follow: prefill is prompt tokens
    until every row has its first token, decode is the tokens after it by the seconds they add."""
    draw = random.Random(task.seed)

    def seconds(batch: int, tokens: int) -> float:
        # New prompts each time, so that nothing can be answered from a cache.
        prompts = [[draw.randrange(task.vocab) for _ in range(task.input)] for _ in range(batch)]
        began = clock()
        counts = engine.generate(prompts, tokens)
        took = clock() - began
        if counts != [tokens] * batch:
            raise SystemExit(f"Asked for {batch} answers of {tokens} tokens and got {counts}.")
        return took

    for batch in task.batches:
        seconds(batch, 2)  # memory is claimed and kernels are chosen once for each shape
        first, whole = seconds(batch, 1), seconds(batch, task.output)
        if whole <= first:
            raise SystemExit(f"{task.output} tokens took no longer than one at batch {batch}: ask for more of them.")
        yield {
            "batch": batch,
            "prefill": batch * task.input / first,
            "decode": batch * (task.output - 1) / (whole - first),
            "first_s": first,
            "whole_s": whole,
        }


def _claim_stdout() -> TextIO:
    """Standard output for the results alone; what libraries print goes to standard error."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return results


def peak_bytes() -> int:
    """Most memory that this process and those it started have had resident, each at its own peak."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        if "VmHWM" in fields:  # kernel threads have no memory of their own
            number = int(fields["Pid"])
            parents[number] = int(fields["PPid"])
            peaks[number] = int(fields["VmHWM"].split()[0]) * 1024
    if os.getpid() not in peaks:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(peaks[number] for number in ours)
