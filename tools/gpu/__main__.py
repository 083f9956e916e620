"""Tries Tessera on this machine's GPU, without network, in parts that each have a time limit: `make gpu`. A folder of
wheels (make gpu-wheels) has what the machine's Python lacks.

Runs with the machine's python3, which has torch, Triton and transformers, before any part of Tessera is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.gpu.parts import CALLS, PARTS
from tools.gpu.running import Notes, Parts, Result, act
from tools.gpu.surroundings import ROOT, Surroundings, obstacle
from tools.gpu.verdict import verdict

FAKE = "tests.platforms.fake_gpu:Cuda"
NOT_PASSED = ("failed", "out of time")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--call", choices=CALLS, help="the parts of this call, in its time: broken, then fast")
    parser.add_argument("--part", action="append", choices=PARTS, help="run this part; may be repeated; default: all")
    parser.add_argument("--only", action="append", default=[], help="a measurement of the part bench; may be repeated")
    parser.add_argument("--minutes", type=float, default=9, help="for all parts together")
    parser.add_argument("--rehearse", action="store_true", help="a little of each part, without a GPU")
    parser.add_argument("--device", default="cuda", help="torch's name of it")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".whl")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build/gpu"))
    parser.add_argument("--inside", nargs=3, metavar=("PART", "WORK", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out, options.wheels = options.out.resolve(), options.wheels.resolve()
    if options.rehearse:
        options.device = "cpu"
    return _inside(options) if options.inside else _outside(options)


def _inside(options: argparse.Namespace) -> int:
    """Runs one part in this process."""
    name, work, seconds = options.inside[0], Path(options.inside[1]), float(options.inside[2])
    platform = FAKE if options.rehearse else "cuda"
    here = Surroundings(
        platform, options.device, options.rehearse, options.wheels, options.out, work, seconds, tuple(options.only)
    )
    part, _ = PARTS[name]
    return act(lambda notes: part(here, notes), Notes(work / f"{name}.json"))


def _outside(options: argparse.Namespace) -> int:
    """Runs each part in a process of its own."""
    reason = obstacle(options.device, options.wheels)
    if reason is not None:
        print(f"gpu did not run: {reason}")
        return 1 if os.environ.get("TESSERA_REQUIRE_ALL") == "1" else 0
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="tessera-gpu-"))
    same = ["--device", options.device, "--wheels", str(options.wheels), "--out", str(options.out)]
    same += [word for name in options.only for word in ("--only", name)]
    same += ["--rehearse"] if options.rehearse else []

    def command(name: str, seconds: float) -> list[str]:
        return [sys.executable, "-m", "tools.gpu", *same, "--inside", name, str(work), str(seconds)]

    facts = {"device": options.device, "rehearsed": options.rehearse}
    call = CALLS.get(options.call)
    if call is not None and options.rehearse:
        call = call.rehearsed()
    limits = {name: limit for name, (_, limit) in PARTS.items()} if call is None else call.limits
    chosen = [name for name in limits if name == "install" or not options.part or name in options.part]
    seconds = 60 * options.minutes if call is None else call.seconds

    def page(results: Sequence[Result]) -> str:
        figures = options.out / "bench.json"
        bench = json.loads(figures.read_text(encoding="utf-8")) if "bench" in chosen and figures.exists() else {}
        return verdict(results, bench, rehearsed=options.rehearse)

    parts = Parts(command, options.out, work, seconds, facts, page=page)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that its part ends with it
    try:
        results = parts.run({name: limits[name] for name in chosen}, needed="install")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"\n{(options.out / 'verdict.txt').read_text(encoding='utf-8')}")
    print(f"{'total':<10} {sum(result.seconds for result in results):7.1f} s  {options.out / 'gpu.json'}")
    return 1 if any(result.outcome in NOT_PASSED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
