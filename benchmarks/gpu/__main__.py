"""Measures Tessera on a GPU beside what the card does at its best, each measurement in a process of its own with a time
limit.

Run: python -m benchmarks.gpu --platform cuda --json FILE [--only NAME ...] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu.figures import Figure, Measure, record, table
from benchmarks.process import claim_stdout
from benchmarks.running import ended_at_the_latest, last_line, output_file

MEASURES: Mapping[str, tuple[str, float]] = {
    "limits": ("kernels:limits", 60),
    "large": ("engines:large", 150),
    "attention": ("kernels:attention", 90),
    "fp8": ("engines:fp8", 60),
    "int8": ("engines:int8", 60),
    "int4": ("engines:int4", 60),
    "busy": ("kernels:busy", 60),
    "many": ("engines:many", 90),
    "transformers": ("peer:transformers", 100),
    "start": ("engines:start", 150),
    "long": ("engines:long", 150),
    "queue": ("engines:queue", 240),
}
"""By name: the function, and the seconds after which it is ended. `limits` runs in any case, since the others are
compared with it; those behind `start` load the files that it leaves, and those before it random weights."""
LEAST = 20
"""Seconds without which nothing is begun."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--platform", default="cuda", help="name of a platform, or package.module:Class")
    parser.add_argument("--json", type=Path, help="file for the figures, rewritten after each measurement")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="measure these, and the limits")
    parser.add_argument("--seconds", type=float, default=3600, help="for all together")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the host: tiny models, few tokens")
    parser.add_argument("--inside", nargs=3, metavar=("NAME", "WORK", "FIGURES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _inside(options)
        return 0
    facts = {
        "platform": options.platform,
        "rehearsed": options.tiny,
        "machine": machine.describe(),
        "versions": {name: _version(name) for name in ("torch", "triton", "transformers")},
        "time": datetime.now(UTC).isoformat(timespec="minutes"),
    }
    work = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    done: list[Measure] = []
    try:
        for one in _measured(options, work):
            done.append(one)
            print(f"{one.name} took {one.seconds:.0f} s{': ' if one.reason else ''}{one.reason}", flush=True)
            if options.json is not None:
                _write(options.json, record(done, facts))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"\n{table(done, rehearsed=options.tiny)}")
    return 1 if any(one.reason for one in done) else 0


def _measured(options: argparse.Namespace, work: Path) -> Iterator[Measure]:
    deadline = time.monotonic() + options.seconds
    figures: dict[str, float] = {}
    for name, (_, limit) in MEASURES.items():
        if options.only and name not in options.only and name != "limits":
            continue
        left = deadline - time.monotonic()
        if left < LEAST:
            yield Measure(name, f"not begun: {max(left, 0):.0f} s were left")
            continue
        one = _in_a_process(options, name, work, figures, min(limit, left))
        figures |= {figure.name: figure.value for figure in one.figures}
        yield one


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _in_a_process(
    options: argparse.Namespace, name: str, work: Path, figures: Mapping[str, float], seconds: float
) -> Measure:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--platform",
        options.platform,
        *(["--tiny"] if options.tiny else []),
    ]
    command += ["--inside", name, str(work), json.dumps(figures)]
    one, began = Measure(name), time.monotonic()
    with (
        output_file() as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True) as process,
        ended_at_the_latest(process, seconds),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            one.figures.append(Figure(**json.loads(line)))
        status = process.wait()
        one.seconds = time.monotonic() - began
        if one.seconds >= seconds:
            one.reason = f"ended after its {seconds:.0f} s"
        elif status != 0:
            one.reason = last_line(said)
        if one.reason:
            said.seek(0)
            sys.stderr.write(said.read())
    return one


def _inside(options: argparse.Namespace) -> None:
    """Runs one measurement in this process; prints each figure as a line of JSON."""
    results = claim_stdout()
    from importlib import import_module

    from benchmarks.gpu.setting import Setting

    name, work, figures = options.inside
    module, _, function = MEASURES[name][0].partition(":")
    measure: Callable[[Setting], Iterator[Figure]] = getattr(import_module(f"benchmarks.gpu.{module}"), function)
    for figure in measure(Setting(options.platform, options.tiny, Path(work), json.loads(figures))):
        print(json.dumps(asdict(figure)), file=results, flush=True)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
