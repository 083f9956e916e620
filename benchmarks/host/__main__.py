"""Measures the host's overhead apart from the model, with a model that computes nothing, next to a fixed loop of plain
Python timed in the same minute.

Run: python -m benchmarks.host [--brief] [--json FILE]   (with core and tessera-cpu installed, or core on PYTHONPATH)
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import torch
from benchmarks import machine
from benchmarks.host import message, prefixes, step, text
from benchmarks.host.loop import loop_us

FORMAT = 1
ROWS = 256
RUN_SECONDS = 1.0
"""A fast accelerator's time for 32 prompts of 1,024 tokens with answers of 64, with a small model."""


class Figure(msgspec.Struct, frozen=True):
    """What was measured of one thing, beside the fixed loop."""

    name: str
    # In `unit`.
    value: float
    unit: str
    # In `unit`; 0 if there is none.
    goal: float
    # Time of the fixed loop just before and after, in microseconds.
    loop_us: float
    # The value in units of that loop, which makes other machines, or busy minutes of this one, comparable.
    loops: float


class Record(msgspec.Struct, frozen=True):
    """All figures of one run."""

    format: int
    # UTC.
    time: str
    machine: str
    versions: dict[str, str]
    # Fraction of the machine that other processes used just before.
    busy: float | None
    figures: list[Figure]


_IN_US = {"us": 1.0, "ns": 1e-3, "ms": 1e3}


def beside_loop(names: dict[str, tuple[str, float]], measure: Callable[[], dict[str, float]]) -> Iterator[Figure]:
    """The named values of `measure`, taken between two timings of the loop. names: unit and goal of each."""
    before = loop_us()
    values = measure()
    loop = (before + loop_us()) / 2
    for name, (unit, goal) in names.items():
        value = values[name]
        yield Figure(name, round(value, 3), unit, goal, round(loop, 1), round(value * _IN_US[unit] / loop, 6))


def figures(*, brief: bool) -> Iterator[Figure]:
    """Measures one after the other. brief: takes a few seconds, for a record at every build."""
    steps = 64 if brief else 320
    times = 3 if brief else 15

    def steps_of_engine() -> dict[str, float]:
        parts, more = step.measure(ROWS, steps), step.measure(2 * ROWS, steps)
        schedule, run, update = (float(np.median(part)) for part in (parts.schedule, parts.run, parts.update))
        further = (more.whole - parts.whole) / ROWS
        return {"step": parts.whole, "schedule": schedule, "run": run, "update": update, "further": further}

    yield from beside_loop(
        {"step": ("us", 250), "schedule": ("us", 0), "run": ("us", 0), "update": ("us", 0), "further": ("us", 0.7)},
        steps_of_engine,
    )
    yield from beside_loop({"message": ("us", 150)}, lambda: {"message": message.measure(ROWS, 100 * times)})
    yield from beside_loop({"line": ("us", 3)}, lambda: {"line": text.measure_lines(ROWS, 10 * times)})
    yield from beside_loop({"front": ("us", 0)}, lambda: {"front": text.measure_front(ROWS, 10 * times)})
    yield from beside_loop({"hop": ("ms", 0.5)}, lambda: {"hop": hop(100 * times)})
    yield from beside_loop({"hashing": ("ns", 30)}, lambda: {"hashing": prefixes.measure_hashing(16_384, 5 * times)})
    yield from beside_loop(
        {"caching": ("ms", RUN_SECONDS * 1e3 * 0.005)}, lambda: {"caching": prefixes.measure_run(32, 64, times)}
    )


def hop(times: int) -> float:
    worker, place = text.measure_hop(times)
    return worker - place


WHAT = {
    "step": f"a step in which {ROWS} rows decode",
    "schedule": "  of it schedule()",
    "run": "  of it the runner, all but the model",
    "update": "  of it update()",
    "further": "each further row of a step",
    "message": f"a step's message with {ROWS} outputs, packed, sent and unpacked",
    "line": "a token's text and its line of a stream",
    "front": "all that the front end does for a token, those two included",
    "hop": "what a short chat takes longer for being rendered and tokenized in a worker",
    "hashing": "hashing a token of a prompt",
    "caching": f"prefix caching, 32 random prompts of {prefixes.PROMPT} tokens (goal: 0.5% of {RUN_SECONDS:g} s)",
}


def describe(figure: Figure) -> str:
    goal = f"goal {figure.goal:g}" if figure.goal else ""
    return (
        f"{WHAT[figure.name]:<78} {figure.value:9.2f} {figure.unit}  {goal:<10} "
        f"{figure.loops:10.6f} loops of {figure.loop_us:.0f} us"
    )


def summary(measured: list[Figure]) -> str:
    """One line, for the table of a build's stages."""
    return ", ".join(f"{figure.name} {figure.value:.3g} {figure.unit}" for figure in measured if figure.goal)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--brief", action="store_true", help="a few seconds, figures less steady")
    parser.add_argument("--json", type=Path, help="where the record is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    busy = machine.busy(0.5 if chosen.brief else 2.0)
    found = []
    for figure in figures(brief=chosen.brief):
        found.append(figure)
        print(describe(figure), flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": str(torch.__version__)}
    time = datetime.now(UTC).isoformat(timespec="minutes")
    record = Record(FORMAT, time, machine.describe(), versions, busy, found)
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        beside = chosen.json.with_name(f"{chosen.json.name}.part")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
        os.replace(beside, chosen.json)
    print(summary(found))


if __name__ == "__main__":
    sys.exit(main())
