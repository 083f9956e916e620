"""Measurements of whole engines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from statistics import median
from types import MappingProxyType

from benchmarks.gpu.arithmetic import many_lengths, rate_between
from benchmarks.gpu.checkpoint import written
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import prompt_flops, token_bytes
from benchmarks.gpu.setting import PEAK, Setting

ROUNDS = 3
PUBLISHED = 17_744
"""Tokens per second of TensorRT-LLM on an H200, 8B in fp8, 1,000 tokens in and out."""
PUBLISHED_MANY: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "nano_vllm": (1434.13, "RTX 4070 Laptop"),
        "vllm": (1361.84, "RTX 4070 Laptop"),
        "nano_vllm_triton": (10_009, "A800"),
    }
)
"""Tokens per second of the whole run of `many`, and the card, as the READMEs of nano-vllm and nano-vllm-triton say."""


def decode(setting: Setting) -> Iterator[Figure]:
    """One row of the 8B shape after a short prompt: bound by reading the weights."""
    yield from _one_row(setting, "decode", prompt=setting.scale(256, 8), answer=setting.scale(128, 6), goal=0.85)


def long(setting: Setting) -> Iterator[Figure]:
    """One row at the end of the model's longest context: bound by reading keys and values too."""
    answer = setting.scale(128, 6)
    prompt = int(setting.large["max_position_embeddings"]) - answer - setting.scale(16, 64)
    yield from _one_row(setting, "long", prompt=prompt, answer=answer, goal=0.80, rounds=1)


def _one_row(
    setting: Setting, name: str, *, prompt: int, answer: int, goal: float, rounds: int = ROUNDS
) -> Iterator[Figure]:
    engine = setting.engine(setting.large, rows=1, tokens=prompt + answer)
    engine.run(engine.prompts([setting.scale(256, 8)], seed=99), [setting.scale(16, 2)])
    found = [engine.run(engine.prompts([prompt], seed=seed), [answer]) for seed in range(setting.scale(rounds, 1))]
    rate = median(one.decode for one in found)
    # A token sees the prompt and, on average, half of the answer.
    read = token_bytes(setting.large, prompt + answer / 2)
    yield Figure(f"{name}_tokens", rate, "tok/s")
    yield Figure(f"{name}_first", median(one.first for one in found), "s")
    yield Figure(f"{name}_read", read * rate / 1e9, "GB/s")
    yield Figure(f"{name}_of_copy", read * rate / setting.copy, "", goal)
    yield _on_reference(name, engine.on_reference())
    engine.close()


def int8(setting: Setting) -> Iterator[Figure]:
    """The decode of one row again, with weights quantized at load."""
    yield from _quantized(setting, "int8")


def fp8(setting: Setting) -> Iterator[Figure]:
    """The same in fp8; and a queue that is never empty, beside what TensorRT-LLM publishes for it."""
    yield from _quantized(setting, "fp8")
    requests, tokens = setting.scale(1000, 7), setting.scale(1000, 6)
    engine = setting.engine(setting.large, rows=setting.scale(512, 2), tokens=2 * tokens, quantization="fp8")
    engine.run(engine.prompts([setting.scale(256, 8)], seed=99), [setting.scale(16, 2)])
    engine.run(engine.prompts([tokens] * requests), [tokens] * requests)
    rate = rate_between(engine.steps, tokens, setting.scale(200, 2), setting.scale(900, 6))
    yield Figure("fp8_queue", rate, "tok/s", 0.9 * PUBLISHED)
    yield Figure("fp8_published_tensorrt_llm", PUBLISHED, "tok/s, published: other machine, H200")
    yield _on_reference("fp8_queue", engine.on_reference())
    engine.close()


def _quantized(setting: Setting, precision: str) -> Iterator[Figure]:
    prompt, answer = setting.scale(256, 8), setting.scale(128, 6)
    engine = setting.engine(setting.large, rows=1, tokens=prompt + answer, quantization=precision)
    engine.run(engine.prompts([prompt], seed=99), [setting.scale(16, 2)])
    rounds = range(setting.scale(ROUNDS, 1))
    rate = median(engine.run(engine.prompts([prompt], seed=seed), [answer]).decode for seed in rounds)
    yield Figure(f"{precision}_tokens", rate, "tok/s")
    if "decode_tokens" in setting.figures:
        yield Figure(f"{precision}_of_bfloat16", rate / setting.figures["decode_tokens"], "times")
    yield _on_reference(precision, engine.on_reference())
    engine.close()


def prefill(setting: Setting) -> Iterator[Figure]:
    """Long prompts alone: bound by arithmetic."""
    prompts, tokens = setting.scale(8, 2), setting.scale(2048, 40)
    engine = setting.engine(setting.large, rows=prompts, tokens=tokens + 2)
    engine.run(engine.prompts([tokens] * prompts, seed=99), [1] * prompts)
    first = median(
        engine.run(engine.prompts([tokens] * prompts, seed=seed), [1] * prompts).first
        for seed in range(setting.scale(ROUNDS, 1))
    )
    rate = prompts * prompt_flops(setting.large, tokens) / first / 1e12
    yield Figure("prefill_tokens", prompts * tokens / first, "tok/s")
    yield Figure("prefill_rate", rate, "TFLOP/s")
    yield Figure("prefill_of_peak", rate / PEAK, "", 0.45)
    yield Figure("prefill_of_gemm", rate / setting.figures["gemm"], "")
    yield _on_reference("prefill", engine.on_reference())
    engine.close()


def many(setting: Setting) -> Iterator[Figure]:
    """256 requests of many lengths at once, of the 0.6B shape: bound by the host if that is slow."""
    requests = setting.scale(256, 3)
    prompts, answers = many_lengths(requests, *((8, 16) if setting.tiny else (100, 1024)))
    engine = setting.engine(setting.small, rows=requests, tokens=setting.scale(4096, 48))
    engine.run(engine.prompts([setting.scale(256, 8)] * requests, seed=99), [setting.scale(16, 2)] * requests)
    found = engine.run(engine.prompts(prompts), answers)
    yield Figure("many_while_all_run", found.decode, "tok/s", 25_000)
    yield Figure("many_whole_run", found.whole, "tok/s")
    for name, (published, card) in PUBLISHED_MANY.items():
        yield Figure(f"many_published_{name}", published, f"tok/s, published: other machine, {card}")
    yield Figure("many_seconds", sum(answers) / found.whole, "s")
    yield _on_reference("many", engine.on_reference())
    engine.close()


def start(setting: Setting) -> Iterator[Figure]:
    """From the start of a process to its first token: 8B from files that were just written, so that they are in the
    page cache, and with all kernels compiled by a first such process."""
    began = time.perf_counter()
    folder = written(setting.folder(setting.large), setting.large, setting.device)
    yield Figure("start_written", time.perf_counter() - began, "s")
    try:
        for name, goal in (("first", None), ("second", 10.0)):
            found = _first_token(setting)
            yield Figure(f"start_{name}", found["seconds"], "s", goal, less_is_better=True)
        yield Figure("start_loaded", found["loaded"], "s")
    except subprocess.CalledProcessError:
        for file in folder.glob("*.safetensors"):  # what cannot be loaded shall not fail the other measurements
            file.unlink()
        raise


def _first_token(setting: Setting) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.first_token",
        setting.platform,
        str(setting.work),
        str(setting.tiny),
    ]
    began = time.monotonic()
    done = subprocess.run([*command, str(began)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _on_reference(name: str, ops: list[str]) -> Figure:
    """How many ops had no kernel: a figure with one would say little."""
    return Figure(f"{name}_on_reference", len(ops), f"ops {' '.join(ops)}".rstrip())
