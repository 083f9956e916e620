"""What every engine is asked to do, in a process of its own: load, then for each batch size answer what is checked, and
the same kind of prompts with one token and with many. Imports the standard library alone, since it runs in each peer's
environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from benchmarks.process import claim_stdout, peak_bytes
from benchmarks.task import CHECK_TOKENS, Prompts, Task

WARM_TOKENS = 2048  # of whole prompts before a batch size is timed


class Engine(Protocol):
    version: str

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """Answers all prompts as one batch, greedily, each with that many tokens whatever they are."""
        ...


def drive(load: Callable[[Task], Engine]) -> None:
    """The main program of a driver: the task is the one argument, the answer one line of JSON for each batch size."""
    task = Task.from_json(sys.argv[1])
    results = claim_stdout()
    began = time.perf_counter()
    engine = load(task)
    seconds = time.perf_counter() - began
    measured = start(engine, task, time.monotonic) if task.part == "start" else rates(engine, task, time.perf_counter)
    for result in measured:
        line = {**result, "load_s": round(seconds, 3), "peak_bytes": peak_bytes(), "version": engine.version}
        print(json.dumps(line), file=results, flush=True)


def start(engine: Engine, task: Task, clock: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """Seconds from the start of the process until the first token. clock: the one that task.began was read from."""
    _answers(engine, Prompts(task).drawn(1, task.input), 1)
    ready = clock() - task.began
    yield {"batch": 1, "values": {"ready_s": ready}, "answers": _checked(engine, Prompts(task), 1)}


def rates(engine: Engine, task: Task, clock: Callable[[], float]) -> Iterator[dict[str, Any]]:
    """For each batch size the seconds of one token and, but for prefill alone, of all, and the rates that follow:
    prefill is prompt tokens until every row has its first token, decode is the tokens after it by the seconds they
    add."""
    prompts = Prompts(task)

    def seconds(batch: int, tokens: int) -> float:
        asked = prompts.drawn(batch, task.input)
        began = clock()
        _answers(engine, asked, tokens)
        return clock() - began

    for batch in task.batches:
        # Memory is claimed and kernels are chosen once for each shape; the answers are those that are checked.
        checked = _checked(engine, prompts, batch)
        seconds(min(batch, max(1, WARM_TOKENS // task.input)), 1)
        first = seconds(batch, 1)
        values = {"prefill": batch * task.input / first, "first_s": first}
        if task.part != "prefill":
            whole = seconds(batch, task.output)
            if whole <= first:
                raise SystemExit(
                    f"{task.output} tokens took no longer than one at batch {batch}: ask for more of them."
                )
            values |= {"decode": batch * (task.output - 1) / (whole - first), "whole_s": whole}
        yield {"batch": batch, "values": values, "answers": checked}


def _checked(engine: Engine, prompts: Prompts, batch: int) -> list[list[int]]:
    """Short answers of a batch of this size, to those of its prompts that the reference has answered too."""
    known = prompts.checked()[:batch]
    others = prompts.drawn(batch - len(known), len(known[0]))
    return _answers(engine, known + others, CHECK_TOKENS)[: len(known)]


def _answers(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    answers = engine.generate(prompts, tokens)
    counts = [len(answer) for answer in answers]
    if counts != [tokens] * len(prompts):
        raise SystemExit(f"Asked for {len(prompts)} answers of {tokens} tokens and got {counts}.")
    return answers
