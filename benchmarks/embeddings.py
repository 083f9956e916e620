"""Texts a second of LLM.embed beside sentence-transformers, ONNX Runtime and OpenVINO, from the same folder of a model:
python -m benchmarks.embeddings MODEL --peer ENVIRONMENT

Each engine is a process with the same number of threads, and gets the same texts; its tokenizer is in the time. All are
loaded first, and none is timed unless every vector of every peer points where ours does. Then each case is measured
with one engine after the other, while the others are stopped; who is first takes turns. Of one case all texts have the
same number of tokens, so no engine pays for padding. A ratio is that of one round; medians are taken over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks import machine
from benchmarks.conversion import convert
from benchmarks.embedding_task import EmbeddingTask
from benchmarks.peers.tessera import tuning
from benchmarks.report import OURS
from benchmarks.running import EngineError, results
from benchmarks.tuning import Conversion

LEAST_COSINE = {"float32": 0.9999, "bfloat16": 0.999}
"""Between a vector of ours in that dtype and a peer's in float32."""
BUSY = 0.05
"""Share of the machine that others may use."""
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Of processors that multiply in bfloat16, as Linux names them."""
ONNX = Conversion("model.onnx", "benchmarks.peers.make_onnx", "")

Rates = Mapping[str, Sequence[float]]
"""Texts a second by engine, one for each round."""


@dataclass(frozen=True)
class Engine:
    name: str
    # Its program.
    module: str
    dtype: str = "float32"
    # Whether it loads the model as an ONNX file.
    onnx: bool = False


PEERS = (
    Engine("sentence-transformers", "sentence_transformers_embeddings"),
    Engine("onnxruntime", "onnxruntime_embeddings", onnx=True),
    Engine("openvino", "openvino_embeddings", onnx=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", type=Path, help="folder as sentence-transformers writes it; its pooling is the mean")
    parser.add_argument("--peer", type=Path, required=True, help="an environment with the peers' packages")
    names = [peer.name for peer in PEERS]
    parser.add_argument("--engines", nargs="+", choices=names, default=names, help="peers to compare with (all)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256], help="of a text (16 256)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="texts of a call (1 32)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a case of an engine, at least (3)")
    parser.add_argument("--threads", type=int, default=len(machine.cores()), help="of each engine (all cores)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    engines = [Engine(OURS, "tessera_embeddings")]
    if multiplies_bfloat16():
        engines.append(Engine(f"{OURS} bfloat16", "tessera_embeddings", dtype="bfloat16"))
    engines += [peer for peer in PEERS if peer.name in options.engines]
    model = options.model.resolve()
    texts = texts_of(model, options.tokens, max(options.batches))
    others = (options.threads, texts, options.batches, options.rounds, options.seconds)
    task = EmbeddingTask(str(model), str(model), "float32", *others)
    try:
        _compare(engines, task, options)
    except EngineError as error:
        sys.exit(str(error))


def multiplies_bfloat16() -> bool:
    with contextlib.suppress(OSError):
        return not BFLOAT16_FLAGS.isdisjoint(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return False


def texts_of(model: Path, lengths: Iterable[int], count: int) -> dict[int, list[str]]:
    """So many texts of Python's help, which is English, by their exact number of tokens."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = cycle(" ".join(topics.values()).split())
    return {
        tokens: [text_of(words, lambda text: len(tokenizer.encode(text).ids), tokens) for _ in range(count)]
        for tokens in lengths
    }


def text_of(words: Iterator[str], count: Callable[[str], int], tokens: int) -> str:
    """The next words, of which those are left out that would make it longer than that many tokens."""
    text = ""
    while count(text) < tokens:
        longer = f"{text} {next(words)}".lstrip()
        if count(longer) <= tokens:
            text = longer
    return text


def least_cosine(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The least over all vectors. ours, theirs: vectors by the tokens of their texts."""
    one, other = (np.concatenate([np.array(vectors[tokens]) for tokens in ours]) for vectors in (ours, theirs))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / lengths).min())


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Our rate over theirs of the same round: the median, the least and the largest."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def row(tokens: int, batch: int, rates: Rates) -> str:
    """A line for each engine, of one case."""
    lines = []
    for name, values in rates.items():
        line = f"{tokens:6} {batch:5}   {name:22} {statistics.median(values):9.1f}"
        if name != OURS:
            middle, least, most = ratio(rates[OURS], values)
            line += f"   {middle:5.2f}x ({least:.2f}-{most:.2f})"
        lines.append(line)
    return "\n".join(lines)


def _compare(engines: Sequence[Engine], task: EmbeddingTask, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        lines: dict[str, Iterator[dict[str, Any]]] = {}
        loaded: dict[str, dict[str, Any]] = {}
        for engine in engines:
            lines[engine.name] = ends.enter_context(contextlib.closing(_results(engine, task, options, Path(folder))))
            loaded[engine.name] = next(lines[engine.name])
        record: dict[str, Any] = {
            "machine": machine.describe(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": options.model.name,
            "threads": task.threads,
            "seconds": task.seconds,
            "versions": {name: line["version"] for name, line in loaded.items()},
            "load_s": {name: line["load_s"] for name, line in loaded.items()},
            "least_cosine": _checked(engines, {name: line["vectors"] for name, line in loaded.items()}),
            "busy": machine.busy(2.0),
        }
        cases: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: {name: [] for name in lines})
        for number in range(task.rounds):
            for case in task.cases:
                for name in list(lines)[:: 1 if number % 2 else -1]:
                    cases[case][name].append(next(lines[name])["rate"])
            if options.json is not None:
                rates = [{"tokens": one, "batch": two, "texts_per_s": found} for (one, two), found in cases.items()]
                options.json.write_text(json.dumps({**record, "cases": rates}, indent=1) + "\n", encoding="utf-8")
    _report(record, cases)


def _report(record: Mapping[str, Any], cases: Mapping[tuple[int, int], Rates]) -> None:
    print(f"{record['machine']}; {record['threads']} threads each; {record['date']}")
    print("; ".join(f"{name} {version}" for name, version in record["versions"].items()))
    print("least cosine to ours: " + ", ".join(f"{name} {least:.6f}" for name, least in record["least_cosine"].items()))
    if record["busy"] is None or record["busy"] > BUSY:
        print("Other programs use the machine: the figures are preliminary.")
    print(f"tokens batch   {'engine':22} {'texts/s':>9}   {OURS} over it, of the same round")
    for (tokens, batch), rates in cases.items():
        print(row(tokens, batch, rates))


def _checked(engines: Sequence[Engine], vectors: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The least cosine between ours and each other engine's. Raises EngineError if one is too small."""
    found = {}
    for engine in engines[1:]:
        found[engine.name] = least = least_cosine(vectors[OURS], vectors[engine.name])
        if not least >= LEAST_COSINE[engine.dtype]:
            raise EngineError(
                f"A vector of {engine.name} has a cosine of {least:.6f} to ours, less than"
                f" {LEAST_COSINE[engine.dtype]}: it would be no comparison of equals. Leave it out with --engines."
            )
    return found


def _results(
    engine: Engine, task: EmbeddingTask, options: argparse.Namespace, folder: Path
) -> Generator[dict[str, Any]]:
    """The lines of an engine's process. folder: for its task, and the model in its format."""
    own = engine.module == "tessera_embeddings"
    python = sys.executable if own else str(options.peer / "bin" / "python")
    variables = {**os.environ, "OMP_NUM_THREADS": str(task.threads), "HF_HUB_OFFLINE": "1"}
    if own:
        variables |= tuning(Path(sys.prefix), machine.cores()).variables
    else:
        variables.pop("PYTHONPATH", None)
    weights = str(convert(ONNX, Path(task.model), folder, python, variables)) if engine.onnx else task.weights
    path = folder / f"{engine.name}.json"
    replace(task, weights=weights, dtype=engine.dtype).write(path)
    yield from results(engine.name, [python, "-m", f"benchmarks.peers.{engine.module}", str(path)], variables)


if __name__ == "__main__":
    main(sys.argv[1:])
