"""What adapters cost: batches without, with one and with several of them, in turn, as ratios to an engine without the
flag.

Run: python -m benchmarks.lora [MODEL] [--rows 64] [--tokens 64] [--adapters 8] [--rank 16] [--rounds 5]
[--platform NAME] (the bundled demo where no model is named)
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import machine
from tessera.config.locate import demo_folder
from tessera.llm import LLM
from tessera.lora import LoRARequest
from tessera.sampling_params import SamplingParams
from tessera.testing.conformance.lora import save_adapter

PROMPT = list(range(100, 116))  # token ids


def timed(llm: LLM, adapters: list[LoRARequest | None], tokens: int) -> float:
    """Seconds of a batch."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    began = time.perf_counter()
    llm.generate([{"prompt_token_ids": PROMPT}] * len(adapters), params, use_tqdm=False, lora_request=adapters)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lora", description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", nargs="?", help="folder; the bundled demo if absent")
    parser.add_argument("--rows", type=int, default=64, help="requests of a batch")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--adapters", type=int, default=8, help="different adapters of a batch")
    parser.add_argument("--rank", type=int, default=16, help="of each adapter")
    parser.add_argument("--rounds", type=int, default=5, help="batches of each kind, in turn")
    parser.add_argument("--platform", help="name of a platform")
    chosen = parser.parse_args()
    rows, most = chosen.rows, chosen.adapters
    options = {"platform": chosen.platform, "max_num_seqs": rows, "skip_tokenizer_init": True}
    lora = {"enable_lora": True, "max_loras": most, "max_lora_rank": chosen.rank}
    model = demo_folder() if chosen.model is None else Path(chosen.model)
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(chosen.model, **options) as plain,
        LLM(chosen.model, **options, **lora) as llm,
    ):
        places = [save_adapter(model, Path(folder) / str(seed), seed=seed, rank=chosen.rank) for seed in range(most)]
        adapters = [LoRARequest(place.name, number + 1, str(place)) for number, place in enumerate(places)]
        none: list[LoRARequest | None] = [None] * rows
        kinds = {
            "without the flag": (plain, none),
            "no adapter": (llm, none),
            "one row of one adapter": (llm, [adapters[0], *none[1:]]),
            "one adapter": (llm, [adapters[0]] * rows),
            f"{most} adapters": (llm, [adapters[row % most] for row in range(rows)]),
        }
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(chosen.rounds + 1):
            for name, (engine, asked) in kinds.items():
                taken = timed(engine, asked, chosen.tokens)
                if number:  # the first round loads adapters
                    seconds[name].append(taken)
    print(f"{rows} rows of {chosen.tokens} tokens, rank {chosen.rank}; {machine.describe()}")
    base = seconds["without the flag"]
    for name, values in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(values, base, strict=True))
        print(f"{name:>24}: {statistics.median(values) / chosen.tokens * 1e3:7.2f} ms a step, {ratio:.2f} times")


if __name__ == "__main__":
    main()
