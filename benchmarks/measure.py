"""The measurement of every engine, in its own process: load, then for each batch size, when it is its turn, answer the
check prompts and the timed ones. Imports only the standard library, since it runs in each peer's environment."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, Protocol

from benchmarks.process import claim_stdout, peak_bytes
from benchmarks.task import CHECK_TOKENS, Prompts, Task

WARM_TOKENS = 2048  # of whole prompts, to warm up before the first timed batch size

Stepped = Callable[[Collection[Hashable]], None]
"""Called after each step with the prompts that got a token, once per token, under any name the engine uses."""


class Engine(Protocol):
    version: str

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        """Answers all prompts as one batch, greedily, each with exactly that many tokens."""
        ...


class Steps:
    """Measures when all `prompts` prompts had their first token, and the tokens from then until one of them had all its
    `tokens`: until then, all rows of the batch are running. clock: in seconds."""

    def __init__(self, prompts: int, tokens: int, clock: Callable[[], float]) -> None:
        self._prompts, self._tokens = prompts, tokens
        self._clock = clock
        self._had: Counter[Hashable] = Counter()
        self._decoded = 0
        self._began = self._first = self._end_of_all_rows = self._last = clock()

    def __call__(self, names: Collection[Hashable]) -> None:
        begun, full = len(self._had) == self._prompts, self._all_rows
        self._had.update(names)
        self._last = self._clock()
        if not begun:
            self._first = self._end_of_all_rows = self._last
        elif full:
            self._decoded += len(names)
            self._end_of_all_rows = self._last

    @property
    def _all_rows(self) -> bool:
        return max(self._had.values(), default=0) < self._tokens

    def values(self, prompt_tokens: int) -> dict[str, float]:
        """prefill: prompt tokens per second until every prompt has its first token. decode: tokens per second from then
        on while all rows are running, if there are any."""
        first = self._first - self._began
        values = {"prefill": self._prompts * prompt_tokens / first, "first_s": first}
        if self._decoded:
            values |= {
                "decode": self._decoded / (self._end_of_all_rows - self._first),
                "whole_s": self._last - self._began,
            }
        return values


def drive(load: Callable[[Task], Engine]) -> None:
    """The main program of a driver; its one argument is the task. Writes a line of JSON when it has loaded, and one per
    batch size, each of which it starts when it can read a line. For part "start", it is done before the first line."""
    task = Task.from_json(sys.argv[1])
    results = claim_stdout()

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=results, flush=True)

    began = time.monotonic()
    engine = load(task)
    loaded = {"load_s": round(time.monotonic() - began, 3), "version": engine.version}
    measured: Iterable[dict[str, Any]]
    if task.part == "start":
        measured = [start(engine, task, time.monotonic)]
    else:
        measured = rates(engine, task, time.monotonic, sys.stdin.readline)
    say(loaded)
    for result in measured:
        say({**result, "peak_bytes": peak_bytes()})


def start(engine: Engine, task: Task, clock: Callable[[], float]) -> dict[str, Any]:
    """Seconds from process start to the first token. clock: the one that task.began was read from."""
    _answers(engine, Prompts(task).drawn(1, task.input), 1)
    ready = clock() - task.began
    return {"batch": 1, "values": {"ready_s": ready}, "answers": _checked(engine, Prompts(task), 1)}


def rates(
    engine: Engine, task: Task, clock: Callable[[], float], turn: Callable[[], object] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Rates for each batch size. turn: returns when the next may start, since another engine may be running."""
    prompts = Prompts(task)
    warm = 0
    for batch in task.batches:
        turn()
        # The first run with a shape allocates memory and selects kernels; its answers are the checked ones.
        checked = _checked(engine, prompts, batch)
        rows = min(batch, max(1, WARM_TOKENS // task.input))
        if rows > warm:
            _answers(engine, prompts.drawn(rows, task.input), 1)
            warm = rows
        asked = prompts.drawn(batch, task.input)
        steps = Steps(batch, task.output, clock)
        _answers(engine, asked, task.output, steps)
        yield {"batch": batch, "values": steps.values(task.input), "answers": checked}


def _checked(engine: Engine, prompts: Prompts, batch: int) -> list[list[int]]:
    """Short answers of a batch of this size, for those of its prompts that the reference has answered too."""
    known = prompts.checked()[:batch]
    others = prompts.drawn(batch - len(known), len(known[0]))
    return _answers(engine, known + others, CHECK_TOKENS)[: len(known)]


def _answers(engine: Engine, prompts: list[list[int]], tokens: int, stepped: Stepped | None = None) -> list[list[int]]:
    heard: Counter[Hashable] = Counter()
    answers = engine.generate(prompts, tokens, stepped or (lambda names: heard.update(list(names))))
    counts = [len(answer) for answer in answers]
    if counts != [tokens] * len(prompts):
        raise SystemExit(f"Asked for {len(prompts)} answers of {tokens} tokens and got {counts}.")
    if stepped is None and sorted(heard.values()) != counts:
        raise SystemExit(f"Answers of {tokens} tokens were told of as {sorted(heard.values())}.")
    return answers
