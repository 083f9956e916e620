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


def decode(given: Setting) -> Iterator[Figure]:
    """One row of the 8B shape after a short prompt: bound by reading the weights."""
    yield from _one_row(given, "decode", prompt=given.of(256, 8), answer=given.of(128, 6), goal=0.85)


def long(given: Setting) -> Iterator[Figure]:
    """One row at the end of the model's longest context: bound by reading keys and values too."""
    answer = given.of(128, 6)
    prompt = int(given.large["max_position_embeddings"]) - answer - given.of(16, 64)
    yield from _one_row(given, "long", prompt=prompt, answer=answer, goal=0.80, rounds=1)


def _one_row(
    given: Setting, name: str, *, prompt: int, answer: int, goal: float, rounds: int = ROUNDS
) -> Iterator[Figure]:
    engine = given.engine(given.large, rows=1, tokens=prompt + answer)
    engine.run(engine.prompts([given.of(256, 8)], seed=99), [given.of(16, 2)])
    found = [engine.run(engine.prompts([prompt], seed=seed), [answer]) for seed in range(given.of(rounds, 1))]
    rate = median(one.decode for one in found)
    # A token sees the prompt and, on average, half of the answer.
    read = token_bytes(given.large, prompt + answer / 2)
    yield Figure(f"{name}_tokens", rate, "tok/s")
    yield Figure(f"{name}_first", median(one.first for one in found), "s")
    yield Figure(f"{name}_read", read * rate / 1e9, "GB/s")
    yield Figure(f"{name}_of_copy", read * rate / given.copy, "", goal)
    yield _on_reference(name, engine.on_reference())
    engine.close()


def int8(given: Setting) -> Iterator[Figure]:
    """The decode of one row again, with weights quantized at load."""
    yield from _quantized(given, "int8")


def fp8(given: Setting) -> Iterator[Figure]:
    """The same in fp8; and a queue that is never empty, beside what TensorRT-LLM publishes for it."""
    yield from _quantized(given, "fp8")
    requests, tokens = given.of(1000, 7), given.of(1000, 6)
    engine = given.engine(given.large, rows=given.of(512, 2), tokens=2 * tokens, quantization="fp8")
    engine.run(engine.prompts([given.of(256, 8)], seed=99), [given.of(16, 2)])
    engine.run(engine.prompts([tokens] * requests), [tokens] * requests)
    rate = rate_between(engine.steps, tokens, given.of(200, 2), given.of(900, 6))
    yield Figure("fp8_queue", rate, "tok/s", 0.9 * PUBLISHED)
    yield Figure("fp8_published_tensorrt_llm", PUBLISHED, "tok/s, published: other machine, H200")
    yield _on_reference("fp8_queue", engine.on_reference())
    engine.close()


def _quantized(given: Setting, precision: str) -> Iterator[Figure]:
    prompt, answer = given.of(256, 8), given.of(128, 6)
    engine = given.engine(given.large, rows=1, tokens=prompt + answer, quantization=precision)
    engine.run(engine.prompts([prompt], seed=99), [given.of(16, 2)])
    rounds = range(given.of(ROUNDS, 1))
    rate = median(engine.run(engine.prompts([prompt], seed=seed), [answer]).decode for seed in rounds)
    yield Figure(f"{precision}_tokens", rate, "tok/s")
    if "decode_tokens" in given.known:
        yield Figure(f"{precision}_of_bfloat16", rate / given.known["decode_tokens"], "times")
    yield _on_reference(precision, engine.on_reference())
    engine.close()


def prefill(given: Setting) -> Iterator[Figure]:
    """Long prompts alone: bound by arithmetic."""
    prompts, tokens = given.of(8, 2), given.of(2048, 40)
    engine = given.engine(given.large, rows=prompts, tokens=tokens + 2)
    engine.run(engine.prompts([tokens] * prompts, seed=99), [1] * prompts)
    first = median(
        engine.run(engine.prompts([tokens] * prompts, seed=seed), [1] * prompts).first
        for seed in range(given.of(ROUNDS, 1))
    )
    rate = prompts * prompt_flops(given.large, tokens) / first / 1e12
    yield Figure("prefill_tokens", prompts * tokens / first, "tok/s")
    yield Figure("prefill_rate", rate, "TFLOP/s")
    yield Figure("prefill_of_peak", rate / PEAK, "", 0.45)
    yield Figure("prefill_of_gemm", rate / given.known["gemm"], "")
    yield _on_reference("prefill", engine.on_reference())
    engine.close()


def many(given: Setting) -> Iterator[Figure]:
    """256 requests of many lengths at once, of the 0.6B shape: bound by the host if that is slow."""
    requests = given.of(256, 3)
    prompts, answers = many_lengths(requests, *((8, 16) if given.tiny else (100, 1024)))
    engine = given.engine(given.small, rows=requests, tokens=given.of(4096, 48))
    engine.run(engine.prompts([given.of(256, 8)] * requests, seed=99), [given.of(16, 2)] * requests)
    found = engine.run(engine.prompts(prompts), answers)
    yield Figure("many_while_all_run", found.decode, "tok/s", 25_000)
    yield Figure("many_whole_run", found.whole, "tok/s")
    for name, (published, card) in PUBLISHED_MANY.items():
        yield Figure(f"many_published_{name}", published, f"tok/s, published: other machine, {card}")
    yield Figure("many_seconds", sum(answers) / found.whole, "s")
    yield _on_reference("many", engine.on_reference())
    engine.close()


def start(given: Setting) -> Iterator[Figure]:
    """From the start of a process to its first token: 8B from files that were just written, so that they are in the
    page cache, and with all kernels compiled by a first such process."""
    began = time.perf_counter()
    folder = written(given.folder(given.large), given.large, given.device)
    yield Figure("start_written", time.perf_counter() - began, "s")
    try:
        for name, goal in (("first", None), ("second", 10.0)):
            found = _first_token(given)
            yield Figure(f"start_{name}", found["seconds"], "s", goal, less_is_better=True)
        yield Figure("start_loaded", found["loaded"], "s")
    except subprocess.CalledProcessError:
        for file in folder.glob("*.safetensors"):  # what cannot be loaded shall not fail the other measurements
            file.unlink()
        raise


def _first_token(given: Setting) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gpu.first_token", given.platform, str(given.work), str(given.tiny)]
    began = time.monotonic()
    done = subprocess.run([*command, str(began)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _on_reference(name: str, ops: list[str]) -> Figure:
    """How many ops had no kernel: a figure with one would say little."""
    return Figure(f"{name}_on_reference", len(ops), f"ops {' '.join(ops)}".rstrip())
