"""What masks cost: batches of which no row, one row or every row has a grammar, in turn, as ratios to no row.

Run: python -m benchmarks.masks [MODEL] [--rows 64] [--tokens 96] [--rounds 5] [--platform NAME] [--depth N]
(the bundled demo where no model is named)
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from benchmarks import machine

from tessera.llm import LLM
from tessera.sampling_params import SamplingParams

REGEX = r"([A-Z][a-z]{1,12}( [a-z]{1,12}){2,9}[.!?] ?)*"
"""Prose without an end: most tokens of a vocabulary are allowed at some place of it."""
PROMPT = "Once upon a time"


def timed(llm: LLM, rows: int, masked: int, tokens: int) -> float:
    """Seconds of a batch, `masked` of whose rows have the grammar."""
    asked = [{"regex": REGEX} if row < masked else None for row in range(rows)]
    params = [
        SamplingParams(temperature=1.0, seed=row, max_tokens=tokens, ignore_eos=True, structured_outputs=one)
        for row, one in enumerate(asked)
    ]
    began = time.perf_counter()
    llm.generate([PROMPT] * rows, params, use_tqdm=False)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", nargs="?", help="folder or repository; the bundled demo if absent")
    parser.add_argument("--rows", type=int, default=64, help="requests of a batch")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="batches of each kind, in turn")
    parser.add_argument("--platform", help="name of a platform")
    parser.add_argument("--depth", type=int, help="steps in flight")
    chosen = parser.parse_args()
    rows, tokens = chosen.rows, chosen.tokens
    kinds = {"none": 0, "one": 1, "all": rows}
    options = {"platform": chosen.platform, "steps_in_flight": chosen.depth, "max_num_seqs": rows}
    with LLM(chosen.model, **options) as llm:
        for masked in kinds.values():  # the grammar is compiled, ops are bound
            timed(llm, rows, masked, tokens)
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(chosen.rounds):
            for name, masked in kinds.items():
                seconds[name].append(timed(llm, rows, masked, tokens))
    print(f"{machine.describe()}; {rows} rows, {tokens} tokens each, {chosen.rounds} rounds in turn")
    least = {name: min(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        ratios = [one / none for one, none in zip(found, seconds["none"], strict=True)]
        per_step = least[name] / tokens * 1e3
        print(f"{name:>5} masked: {per_step:7.2f} ms a step, {statistics.median(ratios):.3f} of none")


if __name__ == "__main__":
    sys.exit(main())
