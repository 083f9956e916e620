"""What speculative decoding brings: tokens per second with drafts over those without, in turn, at several batch sizes.

Run: python -m benchmarks.speculation [MODEL] [--method mtp] [--batches 1 32] [--tokens 128] [--rounds 5]
[--platform NAME] [--load-format dummy] (the bundled demo where no model is named)

Two tasks. copy: greedy answers, which repeat what they have said before, as models of random weights do without end.
chance: tokens drawn at a high temperature, of which none can be foreseen; there drafts can only cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from tessera.llm import LLM
from tessera.sampling_params import SamplingParams

DRAFTS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 2},
}
TASKS = {"copy": 0.0, "chance": 2.0}
PROMPT_TOKENS = 64


def prompts(batch: int) -> list[list[int]]:
    """Prompts that say the same few tokens twice; of each request other ones."""
    return [
        [3 + (7 * row + place % (PROMPT_TOKENS // 2)) % 900 for place in range(PROMPT_TOKENS)] for row in range(batch)
    ]


def speed(llm: LLM, batch: int, tokens: int, temperature: float) -> float:
    """Tokens per second of a batch, prompts included in the time."""
    params = [
        SamplingParams(temperature=temperature, seed=row, max_tokens=tokens, ignore_eos=True) for row in range(batch)
    ]
    began = time.perf_counter()
    llm.generate(prompt_token_ids=prompts(batch), sampling_params=params, use_tqdm=False)
    return batch * tokens / (time.perf_counter() - began)


def accepted(llm: LLM) -> tuple[float, float]:
    """Drafts and accepted ones so far."""
    found: dict[str, Any] = {metric.name: metric.value for metric in llm.get_metrics()}
    return found["spec_decode_num_draft_tokens"], found["spec_decode_num_accepted_tokens"]


def compared(plain: LLM, drafting: LLM, batch: int, tokens: int, temperature: float, rounds: int) -> str:
    """One line: the median of the ratios, the least and the largest; how many drafts were accepted."""
    for llm in (plain, drafting):  # ops are bound, and times of steps become known
        speed(llm, batch, tokens, temperature)
    before, ratios, plain_speeds = accepted(drafting), [], []
    for number in range(rounds):
        in_turn = (plain, drafting) if number % 2 else (drafting, plain)
        found = {llm: speed(llm, batch, tokens, temperature) for llm in in_turn}
        plain_speeds.append(found[plain])
        ratios.append(found[drafting] / found[plain])
    drafts, right = (after - earlier for after, earlier in zip(accepted(drafting), before, strict=True))
    share = f"{right / drafts:.0%} of {drafts / rounds:.0f} drafts accepted" if drafts else "no drafts"
    least, middle, most = min(ratios), statistics.median(ratios), max(ratios)
    return f"{middle:.2f}x ({least:.2f}-{most:.2f}) of {statistics.median(plain_speeds):.0f} tokens/s; {share}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", nargs="?", help="folder or repository; the bundled demo if absent")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="requests at once")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs, in turn")
    parser.add_argument("--platform", help="name of a platform")
    parser.add_argument("--method", choices=DRAFTS, default="ngram", help="who makes drafts")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights of the model's shape")
    chosen = parser.parse_args(arguments)
    options = {
        "platform": chosen.platform, "max_num_seqs": max(chosen.batches), "enable_prefix_caching": False,
        "skip_tokenizer_init": True, "max_model_len": PROMPT_TOKENS + chosen.tokens, "kv_cache_memory_bytes": "1GiB",
        "load_format": chosen.load_format,
    }  # fmt: skip
    print(f"{machine.describe()}; {chosen.method}; {chosen.tokens} tokens each, {chosen.rounds} pairs in turn")
    with (
        LLM(chosen.model, **options) as plain,
        LLM(chosen.model, speculative_config=DRAFTS[chosen.method], **options) as drafting,
    ):
        for task, temperature in TASKS.items():
            for batch in chosen.batches:
                line = compared(plain, drafting, batch, chosen.tokens, temperature, chosen.rounds)
                print(f"{task:>6}, batch {batch:>3}: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
