"""The reference for the answers: transformers in float32, one prompt at a time. Prints one line of JSON: prompts,
answers, and for each token of an answer the tokens that are almost as likely, with the difference in nats."""

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
    """logits: [vocab]. The tokens that are at most WIDEST nats less likely than the most likely one, with the
    difference."""
    below = logits.max() - logits
    tokens = (below <= WIDEST).nonzero().flatten()
    return {token: round(gap, 3) for token, gap in zip(tokens.tolist(), below[tokens].tolist(), strict=True)}


if __name__ == "__main__":
    main()
