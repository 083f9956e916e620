"""Decoding beside other work: the time and the processor time of a token, alone and while a thread of another process
is busy, for each dtype.

Run: python -m benchmarks.busy [MODEL] [--dtypes float32 float16 bfloat16] [--rows 1] [--tokens 32] [--rounds 5]
[--threads N] [--platform NAME] [--real-time] [--json FILE] (without MODEL: random weights in the shape of SmolLM2-135M)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks import machine
from tessera.config.environment import allowed_cores
from tessera.llm import LLM
from tessera.sampling_params import SamplingParams

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
PROMPT = list(range(100, 132))  # token ids
DTYPES = ("float32", "float16", "bfloat16")


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of another process that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def real_time() -> Iterator[None]:
    """Puts this process's threads, and the busy process, which inherits it, before all other load. They take turns as
    /proc/sys/kernel/sched_rr_timeslice_ms says. Needs the right to do so."""
    _schedule(os.SCHED_RR, 1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def timed(llm: LLM, rows: int, tokens: int) -> tuple[float, float]:
    """Milliseconds of a step that decodes these rows: elapsed, and of this process's threads together."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    used, began = _used(), time.perf_counter()
    llm.generate([{"prompt_token_ids": PROMPT}] * rows, params, use_tqdm=False)
    return 1e3 * (time.perf_counter() - began) / tokens, 1e3 * (_used() - used) / tokens


def _used() -> float:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


def measured(llm: LLM, rows: int, tokens: int, rounds: int) -> dict[str, tuple[float, float]]:
    """The fastest of the rounds alone and beside the busy thread, which take turns."""
    taken: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    for _ in range(rounds):
        taken["alone"].append(timed(llm, rows, tokens))
        with busy_thread():
            taken["beside"].append(timed(llm, rows, tokens))
    return {name: min(times) for name, times in taken.items()}


def explained(cores: int) -> float:
    """How much slower the loss of half a core makes work that uses all of them: the busy thread shares one."""
    return cores / (cores - 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("model", nargs="?", help="folder; random weights if absent")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rows", type=int, default=1, help="requests of a batch")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="as in LLM")
    parser.add_argument("--platform", help="as in LLM")
    parser.add_argument("--real-time", action="store_true", help="go before all other load while it is measured")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    cores, found = allowed_cores(), {}
    print(
        f"{machine.describe()}; ms a token, elapsed (processor time); half a core less explains {explained(cores):.2f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        flags: dict[str, Any] = {"threads": options.threads, "platform": options.platform}
        if options.model is None:
            Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
            flags["load_format"] = "dummy"
        for dtype in options.dtypes:
            model = options.model or folder
            room = {"kv_cache_memory_bytes": 1 << 28, "max_model_len": 1024}
            with LLM(model, dtype=dtype, skip_tokenizer_init=True, **room, **flags) as llm:
                timed(llm, options.rows, 4)  # starts all threads
                with real_time() if options.real_time else nullcontext():
                    times = found[dtype] = measured(llm, options.rows, options.tokens, options.rounds)
            (alone, used), (beside, used_beside) = times["alone"], times["beside"]
            ratio = beside / alone
            print(
                f"{dtype:9} alone {alone:7.2f} ({used:6.2f})   beside a busy thread {beside:7.2f} ({used_beside:6.2f})"
                f"   {ratio:5.2f}x, {ratio / explained(cores):.2f} of what its share explains",
                flush=True,
            )
    if options.json is not None:
        record = {"machine": machine.describe(), "policy": os.environ.get("OMP_WAIT_POLICY"), "cores": cores}
        options.json.write_text(json.dumps({**record, "ms": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
