"""Recordings written down beside faster-whisper, with the same weights: how well, and how fast:
python -m benchmarks.transcription MODEL --converted FOLDER --peer ENVIRONMENT

What is said is known: eSpeak NG says sentences, and --recording adds others. Each engine writes all of it down, and so
does transformers' generate: word error rates, and of a long recording the sentences that are missing and the times that
differ from transformers'. Then recordings are timed, one at once and several, with one engine after the other, while
the others are stopped; who is first takes turns. A ratio is that of one round; medians are taken over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.embeddings import BUSY, ratio
from benchmarks.peers.tessera import tuning
from benchmarks.report import OURS
from benchmarks.running import EngineError, results
from benchmarks.spoken import VOICES, Spoken, clip, recording, sentences
from benchmarks.transcription_task import Line, TranscriptionTask
from benchmarks.word_errors import error_rate, missing

REFERENCE = "transformers"
NEAR = 0.1
"""Seconds by which times of the reference and ours may differ."""
COLUMNS = (
    f"{'engine':22} {'words wrong':>11} {'clips':>7} {'long':>7} {'missing':>8}   segments as {REFERENCE} has them"
)


@dataclass(frozen=True)
class Engine:
    name: str
    # Its program.
    module: str
    precision: str = "float32"
    # Whether it loads the folder in CTranslate2's form.
    converted: bool = False


ENGINES = (
    Engine(REFERENCE, "transformers_transcription"),
    Engine(OURS, "tessera_transcription"),
    Engine(f"{OURS} bfloat16", "tessera_transcription", "bfloat16"),
    Engine(f"{OURS} int8", "tessera_transcription", "int8"),
    Engine("faster-whisper", "faster_whisper_transcription", converted=True),
    Engine("faster-whisper int8", "faster_whisper_transcription", "int8", converted=True),
)
RIVALS = {OURS: "faster-whisper", f"{OURS} bfloat16": "faster-whisper", f"{OURS} int8": "faster-whisper int8"}
"""What each of ours is compared with."""


@dataclass(frozen=True)
class Checked:
    """Recordings whose words are known."""

    # One sentence each.
    clips: list[Spoken]
    # What --recording names, and those that are timed.
    others: list[Spoken]
    # None: not wanted.
    long: Spoken | None

    @property
    def all(self) -> list[Spoken]:
        return [*self.clips, *self.others, *([] if self.long is None else [self.long])]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transcription", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("model", type=Path, help="folder of a Whisper as transformers writes it")
    parser.add_argument("--converted", type=Path, required=True, help="the same in CTranslate2's form")
    parser.add_argument("--peer", type=Path, required=True, help="an environment with faster-whisper")
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--engines", nargs="+", choices=names, default=names, help="(all)")
    parser.add_argument(
        "--recording", nargs=2, action="append", default=[], metavar=("WAV", "TEXT"), help="another one"
    )
    parser.add_argument("--clips", type=int, default=16, help="recordings of one sentence (16)")
    parser.add_argument("--minutes", type=float, default=2.0, help="of each recording that is timed (2)")
    parser.add_argument("--long", type=float, default=30.0, help="minutes of the long recording; 0: none (30)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="recordings at once (1 8)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--threads", type=int, default=len(machine.cores()), help="of each engine (all cores)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    try:
        _compare([engine for engine in ENGINES if engine.name in options.engines], options)
    except EngineError as error:
        sys.exit(str(error))


def agreeing(ours: Sequence[Line], theirs: Sequence[Line]) -> tuple[int, float]:
    """How many segments have a text that the reference has too, with both times less than NEAR apart, and how far apart
    the times of equal texts are at most. Of segments with the same text, the nearest are compared."""
    same, apart = 0, 0.0
    for start, end, text in ours:
        gaps = [
            max(abs(start - first), abs(end - last)) for first, last, other in theirs if other.strip() == text.strip()
        ]
        if gaps:
            same += min(gaps) <= NEAR
            apart = max(apart, min(gaps))
    return same, apart


def quality(
    checked: Checked, transcripts: Sequence[Sequence[Line]], reference: Sequence[Sequence[Line]]
) -> dict[str, Any]:
    """Figures of an engine. transcripts, reference: of all recordings that are checked."""
    texts = ["".join(text for _, _, text in lines) for lines in transcripts]
    pairs = [(" ".join(one.sentences), text) for one, text in zip(checked.all, texts, strict=True)]
    figures = {"word_errors": error_rate(pairs)}
    if checked.clips:
        figures["word_errors_clips"] = error_rate(pairs[: len(checked.clips)])
    if checked.long is not None:
        lost = missing(checked.long.sentences, texts[-1])
        figures |= {"word_errors_long": error_rate(pairs[-1:]), "missing": len(lost), "lost": lost}
        figures["sentences"] = len(checked.long.sentences)
    if reference:
        agreed = [agreeing(ours, theirs) for ours, theirs in zip(transcripts, reference, strict=True)]
        figures["segments"] = sum(map(len, transcripts))
        figures["segments_as_reference"] = sum(same for same, _ in agreed)
        figures["most_apart_s"] = max(apart for _, apart in agreed)
    return figures


def quality_row(name: str, figures: Mapping[str, Any]) -> str:
    line = f"{name:22} {figures['word_errors']:11.2%}"
    for key in ("word_errors_clips", "word_errors_long"):
        line += f" {figures[key]:7.2%}" if key in figures else f" {'':7}"
    line += f" {figures['missing']:3}/{figures['sentences']:4}" if "missing" in figures else f" {'':8}"
    if "segments" in figures:
        line += f"   {figures['segments_as_reference']}/{figures['segments']}, equal ones at most"
        line += f" {figures['most_apart_s']:.2f} s apart"
    return line


@dataclass(frozen=True)
class Speeds:
    """Of each engine, one for each round."""

    # Seconds of sound in a second.
    rates: dict[str, list[float]]
    # Seconds of all processors for a minute of sound.
    processor: dict[str, list[float]]

    @classmethod
    def of_none(cls, names: Iterable[str]) -> Speeds:
        return cls({name: [] for name in names}, {name: [] for name in names})


def speed_rows(streams: int, speeds: Speeds) -> list[str]:
    """A line for each engine. streams: recordings at once."""
    lines, rates = [], speeds.rates
    for name, values in rates.items():
        middle, used = statistics.median(values), statistics.median(speeds.processor[name])
        line = f"{streams:7}   {name:22} {middle:8.1f} {used:11.2f}"
        rival = RIVALS.get(name)
        if rival in rates:
            middle, least, most = ratio(values, rates[rival])
            line += f"   {middle:5.2f}x of {rival} ({least:.2f}-{most:.2f})"
        lines.append(line)
    return lines


def _compare(engines: Sequence[Engine], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        timed = [recording(folder / f"timed-{n}.wav", 60 * options.minutes, n) for n in range(max(options.streams))]
        checked = _checked(folder, timed, options)
        paths = [str(one.path) for one in checked.all], [str(one.path) for one in timed]
        task = TranscriptionTask("", "", options.threads, *paths, options.streams, options.rounds)
        lines: dict[str, Iterator[dict[str, Any]]] = {}
        loaded: dict[str, dict[str, Any]] = {}
        for engine in engines:
            lines[engine.name] = ends.enter_context(contextlib.closing(_results(engine, task, options, folder)))
            loaded[engine.name] = next(lines[engine.name])
        reference = loaded.get(REFERENCE, {}).get("transcripts", ())
        record: dict[str, Any] = {
            "machine": machine.describe(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": options.model.name,
            "threads": task.threads,
            "versions": {name: line["version"] for name, line in loaded.items()},
            "load_s": {name: line["load_s"] for name, line in loaded.items()},
            "quality": {name: quality(checked, line["transcripts"], reference) for name, line in loaded.items()},
            "busy": machine.busy(2.0),
        }
        _report_quality(record)
        cases = _measured({name: line for name, line in lines.items() if name != REFERENCE}, timed, options, record)
    if record["busy"] is None or record["busy"] > BUSY:
        print("Other programs use the machine: the figures are preliminary.")
    print(
        f"streams   {'engine':22} {'x real':>8} {'processor s':>11}   of a minute; ours over theirs, of the same round"
    )
    for streams, speeds in cases.items():
        print("\n".join(speed_rows(streams, speeds)))


def _checked(folder: Path, timed: Sequence[Spoken], options: argparse.Namespace) -> Checked:
    drawn = sentences(-1)
    clips = [clip(folder / f"clip-{n}.wav", next(drawn), n // 4 % len(VOICES)) for n in range(options.clips)]
    named = [Spoken(Path(path).resolve(), (text,), 0.0) for path, text in options.recording]
    long = recording(folder / "long.wav", 60 * options.long, -2) if options.long else None
    return Checked(clips, [*named, *timed], long)


def _measured(
    lines: Mapping[str, Iterator[dict[str, Any]]],
    timed: Sequence[Spoken],
    options: argparse.Namespace,
    record: Mapping[str, Any],
) -> dict[int, Speeds]:
    """By the number of recordings at once."""
    cases = {streams: Speeds.of_none(lines) for streams in options.streams}
    for number in range(options.rounds):
        for streams, speeds in cases.items():
            sound = sum(one.seconds for one in timed[:streams])
            for name in list(lines)[:: 1 if number % 2 else -1]:
                figures = next(lines[name])
                speeds.rates[name].append(sound / figures["seconds"])
                speeds.processor[name].append(60 * figures["processor_s"] / sound)
        if options.json is not None:
            figures = [{"streams": streams, **asdict(speeds)} for streams, speeds in cases.items()]
            options.json.write_text(json.dumps({**record, "cases": figures}, indent=1) + "\n", encoding="utf-8")
    return cases


def _report_quality(record: Mapping[str, Any]) -> None:
    print(f"{record['machine']}; {record['threads']} threads each; {record['date']}")
    print("; ".join(f"{name} {version}" for name, version in record["versions"].items()))
    print(COLUMNS)
    for name, figures in record["quality"].items():
        print(quality_row(name, figures), flush=True)


def _results(
    engine: Engine, task: TranscriptionTask, options: argparse.Namespace, folder: Path
) -> Generator[dict[str, Any]]:
    """The lines of an engine's process. folder: for its task."""
    python = str(options.peer / "bin" / "python") if engine.converted else sys.executable
    variables = {**os.environ, "OMP_NUM_THREADS": str(task.threads), "HF_HUB_OFFLINE": "1"}
    if engine.name.startswith(OURS):
        variables |= tuning(Path(sys.prefix), machine.cores()).variables
    if engine.converted:
        variables.pop("PYTHONPATH", None)
    weights = options.converted if engine.converted else options.model
    path = folder / f"{engine.name}.json"
    replace(task, weights=str(weights.resolve()), precision=engine.precision).write(path)
    yield from results(engine.name, [python, "-m", f"benchmarks.peers.{engine.module}", str(path)], variables)


if __name__ == "__main__":
    main(sys.argv[1:])
