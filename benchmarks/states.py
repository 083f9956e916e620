"""Decoding with layers that keep a state: the time of a step beside the time in which the model's weights can be read,
for random weights in the shapes of small hybrid models.

Run: python -m benchmarks.states [--shape NAME ...] [--batch 1 8] [--tokens 48] [--rounds 5] [--platform NAME]
[--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.limits import compiled, read_rate
from tessera.llm import LLM
from tessera.sampling_params import SamplingParams

_COMMON: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 2048, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    # three of four layers
    "delta-net": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 248320,
        "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, **_COMMON,
    },
    # nine of ten layers
    "mamba2": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "vocab_size": 100352,
        "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
        "layer_types": [*["mamba"] * 5, "attention", *["mamba"] * 4] * 4, "num_local_experts": 0,
        "shared_intermediate_size": 4096, "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1,
        "mamba_d_state": 128, "mamba_d_conv": 4, "position_embedding_type": "nope", **_COMMON,
    },
    # ten of sixteen layers
    "short-convolution": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 1024,
        "intermediate_size": 4608, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
        "layer_types": ["conv", "conv", "full_attention"] * 5 + ["conv"], "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False, **_COMMON,
    },
}  # fmt: skip
PROMPT = list(range(100, 132))  # token ids


def step_seconds(llm: LLM, batch: int, tokens: int) -> float:
    """Of a step that decodes: what a long answer takes longer than one of a single token."""
    took = []
    for length in (1, 1 + tokens):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        llm.generate([{"prompt_token_ids": PROMPT}] * batch, params, use_tqdm=False)
        took.append(time.perf_counter() - began)
    return (took[1] - took[0]) / tokens


def weight_bytes(folder: str, platform: Sequence[str]) -> int:
    """All of which a step reads, since the embedding is also the head."""
    small = "--max-model-len", "1024", "--max-num-seqs", "8"  # what it holds besides does not matter
    command = [sys.executable, "-m", "tessera.cli", "plan", folder, "--dtype", "bfloat16", "--json", *small, *platform]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]["weight_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.states", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, action="append", help="may be repeated; default: all")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="rows of a step")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", help="name of a platform")
    parser.add_argument("--json", type=Path, help="where to write the figures too")
    chosen = parser.parse_args()
    figures = []
    print(f"{machine.describe()}\nshape              batch     a step   weights read   of that limit")
    with tempfile.TemporaryDirectory() as folder:
        library, threads = compiled(Path(folder)), len(os.sched_getaffinity(0))
        for name in chosen.shape or SHAPES:
            (Path(folder) / "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
            nbytes = weight_bytes(folder, ["--platform", chosen.platform] if chosen.platform else [])
            options = {"platform": chosen.platform, "max_num_seqs": max(chosen.batch), "max_model_len": 1024}
            with LLM(
                folder, dtype="bfloat16", load_format="dummy", skip_tokenizer_init=True,
                enable_prefix_caching=False, **options,
            ) as llm:  # fmt: skip
                for batch in chosen.batch:
                    step_seconds(llm, batch, 2)
                    took, reads = [], []
                    for _ in range(chosen.rounds):
                        took.append(step_seconds(llm, batch, chosen.tokens))
                        reads.append(nbytes / read_rate(library, threads))
                    ratio = statistics.median(limit / own for limit, own in zip(reads, took, strict=True))
                    step, limit = (1e3 * statistics.median(seconds) for seconds in (took, reads))
                    print(f"{name:18} {batch:5}  {step:8.2f} ms   {limit:8.2f} ms   {ratio:.2f}", flush=True)
                    figures.append(
                        {"shape": name, "batch": batch, "weight_bytes": nbytes, "took": took, "reads": reads}
                    )
    if chosen.json is not None:
        written = {"machine": machine.describe(), "figures": figures}
        chosen.json.write_text(json.dumps(written, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
