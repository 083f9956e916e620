"""Compares Tessera's speed with its peers' and the machine's limits, in turn, on one machine. benchmarks/README.md says
how to install the peers."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, only its own folder would be on the path

import msgspec

from benchmarks import limits, machine
from benchmarks.agreement import Reference, agreement, load, save
from benchmarks.engines import Engine, find_peers, in_turn, ours
from benchmarks.parts import PARTS
from benchmarks.record import Record, RecordError, Setup, Shape
from benchmarks.report import report
from benchmarks.rounds import RoundCallbacks, Surroundings, run_rounds
from benchmarks.running import EngineError, results
from benchmarks.task import FILE, PRECISIONS, SHORT, Prompts, Task, checked_length
from tessera.gguf.model import open_model

WATCH_SECONDS = 2.0  # how long to watch the machine's other load before each run
CONVERTED = "converted"  # a folder next to the peers' environments, or else next to the rounds
REFERENCE = "transformers"  # the peer environment that answers the check prompts


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    task = _task(options)
    peers, others = _peers(options)
    for name in others:
        _say(f"{name} has no driver and is left out")
    engines = _select_engines(options, peers)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that running engines are ended on SIGTERM too
    try:
        if options.prepare:
            return _prepare(engines, task)
        record = Record.open(options.json, _setup(options), _shapes(options))
        reference, failed = _refer(options, peers, task)
        return _compare(options, engines, task, record, reference, failed)
    except RecordError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        _say(f"Interrupted; the same command with --json {options.json} goes on from here")
        return 130


def _compare(
    options: argparse.Namespace,
    engines: list[Engine],
    task: Task,
    record: Record,
    reference: Reference | None,
    failed: list[str],
) -> int:
    _say(f"{options.part}: {len(engines)} rows, {options.rounds} rounds, kept in {options.json}")
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        library = limits.compiled(Path(folder))
        callbacks = RoundCallbacks(
            say=_say,
            look=lambda: Surroundings(machine.busy(WATCH_SECONDS), limits.probe(library, task.threads)),
            judge=lambda answers: None if reference is None else agreement(answers, reference),
            bound=limits.bound,
            is_over=lambda: time.monotonic() > until,
        )
        outcome = run_rounds(in_turn(engines), task, record, options.rounds, callbacks)
    print(f"\n{report(record, PARTS[options.part], options.batch)}")
    for line in failed + outcome.failed:
        print(f"Failed: {line}")
    if outcome.unfinished:
        print(
            f"Not done after {options.minutes} minutes; the same command with --json {options.json} goes on from here"
        )
    return 1 if failed or outcome.failed else 0


def _prepare(engines: list[Engine], task: Task) -> int:
    failed = 0
    for engine in engines:
        try:
            _say(f"{engine.row} loads {Path(engine.prepared(task).weights).name}")
        except EngineError as error:
            _say(str(error))
            failed = 1
    return failed


def _refer(options: argparse.Namespace, peers: list[Engine], task: Task) -> tuple[Reference | None, list[str]]:
    """The reference's answers, if a peer can give them or has given them before, and errors. A file has none."""
    if not options.model.is_dir():
        return None, []
    length, prompts = checked_length(task.input), Prompts(task).checked()
    path = _converted(options) / f"{options.model.name}.reference-{length}.json"
    peer = next((peer for peer in peers if peer.name == REFERENCE), None)
    found = load(path, prompts)
    if found is not None or peer is None:
        return found, []
    _say(f"the reference answers prompts of {length} tokens")
    command = [peer.python, "-m", "benchmarks.peers.reference", task.as_json()]
    try:
        (line,) = results("The reference", command, peer.variables())
    except EngineError as error:
        return None, [str(error)]
    found = msgspec.convert(line, Reference, strict=False)
    save(path, found)
    return found, []


def _task(options: argparse.Namespace) -> Task:
    config = _config_of(options.model)
    model = str(options.model)
    return Task(
        part=options.part,
        model=model,
        weights=model,
        dtype=options.dtype,
        input=options.input,
        output=options.output,
        batches=options.batch,
        vocab=config.get("text_config", config)["vocab_size"],
        threads=len(machine.cores()),
        seed=0,
        platform=options.platform,
    )


def _config_of(model: Path) -> dict[str, Any]:
    """What config.json holds; of a GGUF file, what it would hold."""
    if not model.is_dir():
        return open_model(model).config()
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return config


def _setup(options: argparse.Namespace) -> Setup:
    return Setup(options.model.name, options.dtype, machine.describe())


def _shapes(options: argparse.Namespace) -> dict[str, Shape]:
    return {options.part: Shape(options.input, options.output)}


def _peers(options: argparse.Namespace) -> tuple[list[Engine], list[str]]:
    return find_peers(options.peers, options.dtype, _converted(options)) if options.peers else ([], [])


def _select_engines(options: argparse.Namespace, peers: list[Engine]) -> list[Engine]:
    """The engines to compare."""
    engines = [
        engine
        for engine in [*ours(options.dtype, _converted(options)), *peers]
        if engine.takes(options.part)
        and engine.precision in options.precisions
        and (engine.precision == FILE) is not options.model.is_dir()
        and (options.engines is None or engine.name in options.engines)
    ]
    for name, what in dict.fromkeys((engine.name, what) for engine in engines for what in engine.tuning.missing):
        _say(f"{name} is not tuned as its documentation says: {what}")
    return engines


def _converted(options: argparse.Namespace) -> Path:
    return Path(options.peers or options.json.parent.resolve()) / CONVERTED


def _say(line: str) -> None:
    print(f"[{datetime.now(UTC):%H:%M:%S}] {line}", file=sys.stderr, flush=True)


# ---- options -----------------------------------------------------------------


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    parser.add_argument("--part", choices=PARTS, default="decode", help="what is measured (decode)")
    parser.add_argument(
        "--model",
        type=_model,
        required=True,
        metavar="MODEL",
        help="a folder with config.json and *.safetensors, or a GGUF file",
    )
    parser.add_argument("--peers", type=_folder, metavar="FOLDER", help="one virtual environment for each peer in it")
    parser.add_argument("--engines", type=_names, metavar="A,B", help="those alone (all)")
    parser.add_argument(
        "--precisions",
        type=_precisions,
        default=PRECISIONS,
        metavar="A,B",
        help="plain,int8,int4; of a GGUF file there is only file",
    )
    parser.add_argument("--rounds", type=_count, default=3, metavar="N", help="how often all are run (3)")
    parser.add_argument("--minutes", type=_count, default=35, metavar="N", help="none is begun after these (35)")
    parser.add_argument("--batch", type=_counts, metavar="N,N", help="batch sizes, or clients (the part's)")
    parser.add_argument("--input", type=_count, metavar="N", help="tokens of a prompt (the part's)")
    parser.add_argument("--output", type=_count, metavar="N", help="tokens of an answer (the part's)")
    parser.add_argument("--dtype", choices=SHORT, default="bfloat16", help="(bfloat16)")
    parser.add_argument("--platform", default="", metavar="NAME", help="Tessera's, where several are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps each round, and goes on with what it holds")
    parser.add_argument("--prepare", action="store_true", help="convert the model for all, and measure nothing")
    options = parser.parse_args(arguments)
    part = PARTS[options.part]
    options.batch, options.input = options.batch or list(part.batches), options.input or part.input
    options.output = options.output or part.output
    if options.output < 2 <= part.output:
        parser.error(f"argument --output: part {part.name} needs answers of two tokens at least")
    if options.json is None:
        options.json = Path(f"compare-{options.model.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    return options


def _folder(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path


def _model(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if path.is_file() and path.suffix == ".gguf":
        return path
    path = _folder(text)
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} holds no config.json, so it is not a model's folder")
    return path


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _precisions(text: str) -> list[str]:
    names = _names(text)
    for name in names:
        if name not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(PRECISIONS)}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _counts(text: str) -> list[int]:
    return sorted({_count(part.strip()) for part in text.split(",")})


if __name__ == "__main__":
    sys.exit(main())
