"""What the others' answers are compared with: transformers in float32, each prompt alone. One line of JSON: the
answers, and for each of their tokens the likeliest tokens there with the nats by which each is less likely than the
first."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from benchmarks.peers.transformers import Transformers
from benchmarks.process import claim_stdout
from benchmarks.task import CHECK_TOKENS, Prompts, Task

LIKELIEST = 50


def main() -> None:
    results = claim_stdout()
    task = replace(Task.from_json(sys.argv[1]), dtype="float32")
    engine = Transformers(task)
    answers, near = [], []
    for prompt in Prompts(task).checked():
        found = engine.generated([prompt], CHECK_TOKENS, return_dict_in_generate=True, output_logits=True)
        answers.append(found.sequences[0, len(prompt) :].tolist())
        near.append([_likeliest(logits[0]) for logits in found.logits])
    line = {"version": f"transformers {engine.version}, float32", "answers": answers, "near": near}
    print(json.dumps(line), file=results, flush=True)


def _likeliest(logits: Any) -> dict[int, float]:
    best = logits.topk(LIKELIEST)
    below = (best.values[0] - best.values).tolist()
    return {token: round(gap, 5) for token, gap in zip(best.indices.tolist(), below, strict=True)}


if __name__ == "__main__":
    main()
