"""What the others' answers are compared with: transformers in float32, each prompt alone. One line of JSON: prompts,
answers, and for each of their tokens those that are hardly less likely there, with the nats by which they are."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from benchmarks.peers.transformers import Transformers
from benchmarks.process import claim_stdout
from benchmarks.task import CHECK_TOKENS, WIDEST, Prompts, Task


def main() -> None:
    results = claim_stdout()
    task = replace(Task.from_json(sys.argv[1]), dtype="float32")
    engine = Transformers(task)
    answers, likely = [], []
    prompts = Prompts(task).checked()
    for prompt in prompts:
        found = engine.generated([prompt], CHECK_TOKENS, return_dict_in_generate=True, output_logits=True)
        answers.append(found.sequences[0, len(prompt) :].tolist())
        likely.append([near(logits[0]) for logits in found.logits])
    line = {
        "version": f"transformers {engine.version}, float32",
        "prompts": prompts,
        "answers": answers,
        "near": likely,
    }
    print(json.dumps(line), file=results, flush=True)


def near(logits: Any) -> dict[int, float]:
    """logits: [vocab]. Tokens that are at most WIDEST less likely than the likeliest, and by how many nats."""
    below = logits.max() - logits
    tokens = (below <= WIDEST).nonzero().flatten()
    return {token: round(gap, 3) for token, gap in zip(tokens.tolist(), below[tokens].tolist(), strict=True)}


if __name__ == "__main__":
    main()
