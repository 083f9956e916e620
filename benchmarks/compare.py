"""Tessera's speed beside its peers and the machine's limits, in turn, on one machine; benchmarks/README.md says how the
peers are installed."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it finds its own folder alone

from benchmarks import machine
from benchmarks.engines import EngineError, find_peers, limits, ours
from benchmarks.limits import ITEM_BYTES
from benchmarks.measure import Task
from benchmarks.record import Cell, Record, RecordError, Setup
from benchmarks.report import report
from benchmarks.tuning import Tuning

WATCH_SECONDS = 2.0  # before each run, for what else the machine does


class Runnable(Protocol):
    """An engine as the rounds see it."""

    @property
    def name(self) -> str: ...
    @property
    def tuning(self) -> Tuning: ...
    def run(self, task: Task) -> Iterator[dict[str, Any]]: ...


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    engines = [ours(), *_peers(options.peers), limits()]
    setup = Setup(options.model.name, options.dtype, options.input, options.output, machine.describe())
    try:
        record = Record.open(options.json, setup)
    except RecordError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    _say(f"{len(engines)} engines, {options.rounds} rounds, kept in {options.json}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what runs is ended then too
    try:
        failed = run_rounds(engines, _task(options), record, options.rounds, _say, lambda: machine.busy(WATCH_SECONDS))
    except KeyboardInterrupt:
        _say(f"Interrupted; the same command with --json {options.json} goes on from here")
        return 130
    print(f"\n{report(record, options.batch)}")
    for line in failed:
        print(f"Failed: {line}")
    return 1 if failed else 0


def run_rounds(
    engines: Sequence[Runnable],
    task: Task,
    record: Record,
    rounds: int,
    say: Callable[[str], None],
    busy: Callable[[], float | None],
) -> list[str]:
    """Runs what the record lacks: all engines once, then all again. One that fails is left out from there on; the
    reasons come back."""
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for engine in engines:
            batches = record.lacks(number, engine.name, task.batches)
            if not batches or engine.name in failed:
                continue
            share = busy()
            say(f"round {number} of {rounds}: {engine.name}, batch {', '.join(map(str, batches))}")
            try:
                for result in engine.run(_for_round(task, batches, number)):
                    cell = _cell(result, number, engine, share)
                    record.add(cell)
                    say(f"  batch {cell.batch}: prefill {cell.prefill:.0f}, decode {cell.decode:.1f} tokens/s")
            except EngineError as error:
                failed[engine.name] = str(error)
                say(f"  {error}")
    return list(failed.values())


def _for_round(task: Task, batches: list[int], number: int) -> Task:
    return Task(**{**vars(task), "batches": batches, "seed": number})


def _cell(result: dict[str, Any], number: int, engine: Runnable, busy: float | None) -> Cell:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Cell(round=number, engine=engine.name, time=now, busy=busy, missing=tuple(engine.tuning.missing), **result)


def _task(options: argparse.Namespace) -> Task:
    config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    folder = str(options.model)
    return Task(
        model=folder,
        weights=folder,
        dtype=options.dtype,
        input=options.input,
        output=options.output,
        batches=options.batch,
        vocab=config.get("text_config", config)["vocab_size"],
        threads=len(machine.cores()),
        seed=0,
        platform=options.platform,
    )


def _peers(folder: Path | None) -> list[Any]:
    if folder is None:
        return []
    peers, others = find_peers(folder)
    for name in others:
        _say(f"{name} has no driver and is left out")
    for peer in peers:
        for what in peer.tuning.missing:
            _say(f"{peer.name} is not tuned as its documentation says: {what}")
    return peers


def _say(line: str) -> None:
    print(f"[{datetime.now(UTC):%H:%M:%S}] {line}", file=sys.stderr, flush=True)


# ---- options -----------------------------------------------------------------


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    parser.add_argument("--model", type=_model, required=True, metavar="FOLDER", help="config.json and *.safetensors")
    parser.add_argument("--peers", type=_folder, metavar="FOLDER", help="one virtual environment for each peer in it")
    parser.add_argument("--rounds", type=_count, default=3, metavar="N", help="how often all are run (3)")
    parser.add_argument("--batch", type=_counts, default=[1, 8, 32], metavar="N,N", help="batch sizes (1,8,32)")
    parser.add_argument("--input", type=_count, default=256, metavar="N", help="tokens of a prompt (256)")
    parser.add_argument("--output", type=_several, default=64, metavar="N", help="tokens of an answer (64)")
    parser.add_argument("--dtype", choices=sorted(ITEM_BYTES), default="bfloat16", help="(bfloat16)")
    parser.add_argument("--platform", default="", metavar="NAME", help="Tessera's, where several are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps each round, and goes on with what it holds")
    options = parser.parse_args(arguments)
    if options.json is None:
        options.json = Path(f"compare-{options.model.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    return options


def _folder(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path


def _model(text: str) -> Path:
    path = _folder(text)
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} holds no config.json, so it is not a model's folder")
    return path


def _count(text: str) -> int:
    return _at_least(text, 1)


def _several(text: str) -> int:
    return _at_least(text, 2)


def _at_least(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
    return int(text)


def _counts(text: str) -> list[int]:
    return sorted({_count(part.strip()) for part in text.split(",")})


if __name__ == "__main__":
    sys.exit(main())
