"""What masks, edits and penalties cost: batches of which no row, one row or every row has some, in turn, as ratios to
a batch without.

Run: python -m benchmarks.masks [MODEL] [--load-format dummy] [--rows 64] [--tokens 96] [--rounds 5] [--platform NAME]
(the bundled demo where no model is named; --kinds masks bias penalties chooses among them, --json FILE keeps the times)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from tessera.llm import LLM
from tessera.sampling_params import SamplingParams

REGEX = r"([A-Z][a-z]{1,12}( [a-z]{1,12}){2,9}[.!?] ?)*"
"""Prose without an end: most tokens of a vocabulary are allowed at some place of it."""
PROMPT = "Once upon a time"
KINDS: Mapping[str, Mapping[str, Any]] = {
    "masks": {"structured_outputs": {"regex": REGEX}},
    "bias": {"logit_bias": {5: 2.0, 7: -3.0}},
    "penalties": {"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1},
}


def timed(llm: LLM, rows: int, asking: int, tokens: int, fields: Mapping[str, Any]) -> float:
    """Seconds of a batch, `asking` of whose rows have the fields."""
    params = [
        SamplingParams(
            temperature=1.0, seed=row, max_tokens=tokens, ignore_eos=True, **(fields if row < asking else {})
        )
        for row in range(rows)
    ]
    began = time.perf_counter()
    llm.generate([PROMPT] * rows, params, use_tqdm=False)
    return time.perf_counter() - began


def measured(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round, after one that does not count: grammars are compiled in it, ops are bound."""
    for case in cases.values():
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            seconds[name].append(case())
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.masks", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("model", nargs="?", help="folder or repository; the bundled demo if absent")
    parser.add_argument("--load-format", help='"dummy" for random weights')
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="what rows ask for")
    parser.add_argument("--rows", type=int, default=64, help="requests of a batch")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="batches of each kind, in turn")
    parser.add_argument("--platform", help="name of a platform")
    parser.add_argument("--depth", type=int, help="steps in flight")
    parser.add_argument("--json", type=Path, help="file for the seconds of each round")
    chosen = parser.parse_args(arguments)
    rows, tokens = chosen.rows, chosen.tokens
    options = {"platform": chosen.platform, "steps_in_flight": chosen.depth, "max_num_seqs": rows}
    options |= {"load_format": chosen.load_format} if chosen.load_format else {}
    with LLM(chosen.model, **options) as llm:
        cases = {"none": (0, {})} | {
            f"{kind}, {name}": (asking, KINDS[kind])
            for kind in chosen.kinds
            for name, asking in (("one", 1), ("all", rows))
        }
        seconds = measured(
            {name: lambda case=case: timed(llm, rows, case[0], tokens, case[1]) for name, case in cases.items()},
            chosen.rounds,
        )
    told = f"{machine.describe()}; {rows} rows, {tokens} tokens each, {chosen.rounds} rounds in turn"
    print(told)
    for name, found in seconds.items():
        ratios = [one / none for one, none in zip(found, seconds["none"], strict=True)]
        per_step = min(found) / tokens * 1e3
        print(f"{name:>14}: {per_step:7.2f} ms a step, {statistics.median(ratios):.3f} of none")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"setup": told, "model": chosen.model or "demo", "seconds": seconds}, indent=1)
        )


if __name__ == "__main__":
    sys.exit(main())
