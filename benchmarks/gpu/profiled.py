"""Where the time of a step goes, by kernel: steps of the 0.6B shape under torch's profiler.

Run: python -m benchmarks.gpu.profiled --platform cuda --text FILE [--tiny]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.arithmetic import Step, merged
from benchmarks.gpu.kernels import profiler
from benchmarks.gpu.setting import Setting

STEPS = 20
LONGEST = 25
"""Lines of a table."""


class Profiled:
    """Watches STEPS steps from the third on that has so many rows."""

    def __init__(self, setting: Setting, rows: int) -> None:
        self.setting, self.rows, self.steps = setting, rows, setting.scale(STEPS, 2)
        self.profile: Any = profiler(setting)
        self.full, self.first, self.began, self.seconds = 0, 0, 0.0, 0.0

    def __call__(self, steps: Sequence[Step]) -> None:
        self.full += len(steps[-1].keys) == self.rows
        if self.full == 3 and not self.began:
            self.setting.synchronize()
            self.profile.__enter__()
            self.began, self.first = time.perf_counter(), len(steps)
        elif self.began and not self.seconds and len(steps) - self.first == self.steps:
            self.seconds = steps[-1].at - self.began
            self.profile.__exit__(None, None, None)

    def lines(self) -> Iterator[str]:
        """A table: of a step, microseconds on the device by kernel, and how often; then those in which nothing ran."""
        on_host = self.setting.device.type == "cpu"
        took: defaultdict[str, float] = defaultdict(float)
        times, intervals = Counter[str](), list[tuple[float, float]]()
        for event in self.profile.events():
            if (event.device_type.name == "CPU") == on_host and not event.is_user_annotation:
                took[event.name] += event.time_range.elapsed_us()
                times[event.name] += 1
                intervals.append((event.time_range.start, event.time_range.end))
        step, ran = 1e6 * self.seconds / self.steps, merged(intervals) / self.steps
        yield f"{self.rows} rows: {step:,.0f} us a step, of which something ran {ran:,.0f} us"
        for name in sorted(took, key=took.__getitem__, reverse=True)[:LONGEST]:
            yield f"{took[name] / self.steps:10,.1f} us {times[name] / self.steps:7.1f} times  {name[:100]}"


def profiled(setting: Setting) -> Iterator[str]:
    """The tables of captured steps, of few and many rows, and of a step of a prompt, which is not captured."""
    answer = setting.scale(STEPS + 10, 8)
    many = setting.scale(256, 3)
    engine = setting.engine(setting.small, rows=many, tokens=setting.scale(1024, 48))
    engine.run(engine.prompts([8] * many, seed=99), [2] * many)
    for rows in (1, setting.scale(32, 2), many):
        watch = Profiled(setting, rows)
        engine.run(engine.prompts([setting.scale(128, 8)] * rows), [answer] * rows, watch)
        yield from watch.lines()
        yield ""
    with profiler(setting) as profile:
        engine.run(engine.prompts([setting.scale(1000, 30)]), [1])
        setting.synchronize()
    yield "a prompt alone, its launches by the host:"
    yield profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=LONGEST, max_name_column_width=60)
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.profiled", description=__doc__)
    parser.add_argument("--platform", default="cuda", help="name of a platform, or package.module:Class")
    parser.add_argument("--text", type=Path, required=True, help="the file that the tables are written to as they come")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the host: a tiny model, few steps")
    options = parser.parse_args()
    with TemporaryDirectory() as work, options.text.open("w", encoding="utf-8") as file:
        for line in profiled(Setting(options.platform, options.tiny, Path(work), {})):
            print(line, file=file, flush=True)


if __name__ == "__main__":
    main()
