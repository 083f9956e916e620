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
from benchmarks.gpu.engine import Timed
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import kv_bytes, prompt_flops, token_bytes
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


def large(setting: Setting) -> Iterator[Figure]:
    """The 8B shape, in one engine: decode of few and many rows, bound by reading weights, keys and values; of short
    rows beside a long one; and long prompts, bound by arithmetic."""
    rows, answer = setting.scale(256, 3), setting.scale(64, 4)
    longest = setting.scale(32_768, 60)
    engine = setting.engine(setting.large, rows=rows, tokens=longest + answer)
    engine.run(engine.prompts([setting.scale(256, 8)] * rows, seed=99), [setting.scale(16, 2)] * rows)
    yield from _one_row_of(setting, engine)
    for number, context, goal in (
        (setting.scale(32, 2), setting.scale(1024, 9), 0.7),
        (rows, context_of(setting), 0.6),
    ):
        rate = engine.run(engine.prompts([context] * number), [answer] * number).decode
        read = token_bytes(setting.large, 0) / number + kv_bytes(setting.large) * (context + answer / 2)
        yield Figure(f"decode_{number}_tokens", rate, "tok/s")
        yield Figure(f"decode_{number}_of_copy", read * rate / setting.copy, "", goal)
    yield from _beside_a_long_row(setting, engine, longest, answer)
    yield from _prompts(setting, engine)
    yield _on_reference("large", engine.on_reference())
    engine.close()


def context_of(setting: Setting) -> int:
    """Tokens of each of the most rows."""
    return setting.scale(1024, 5)


def _one_row_of(setting: Setting, engine: Timed) -> Iterator[Figure]:
    prompt, answer = setting.scale(256, 8), setting.scale(128, 6)
    found = [engine.run(engine.prompts([prompt], seed=seed), [answer]) for seed in range(setting.scale(ROUNDS, 1))]
    rate = median(one.decode for one in found)
    # A token sees the prompt and, on average, half of the answer.
    read = token_bytes(setting.large, prompt + answer / 2)
    yield Figure("decode_tokens", rate, "tok/s")
    yield Figure("decode_first", median(one.first for one in found), "s")
    yield Figure("decode_of_copy", read * rate / setting.copy, "", 0.85)


def _beside_a_long_row(setting: Setting, engine: Timed, longest: int, answer: int) -> Iterator[Figure]:
    """31 rows of 100 tokens beside a row as long as may be, over what all 32 would take if the bytes alone counted."""
    short, number = setting.scale(100, 4), setting.scale(31, 1)
    rate = engine.run(engine.prompts([longest, *[short] * number]), [answer] * (number + 1)).decode
    keys = longest + number * short + (number + 1) * answer / 2
    read = (token_bytes(setting.large, 0) + kv_bytes(setting.large) * keys) / (number + 1)
    yield Figure("decode_beside_long_tokens", rate, "tok/s")
    yield Figure("decode_beside_long_of_copy", read * rate / setting.copy, "", 0.6)


def _prompts(setting: Setting, engine: Timed) -> Iterator[Figure]:
    prompts, tokens = setting.scale(8, 2), setting.scale(2048, 40)
    first = median(
        engine.run(engine.prompts([tokens] * prompts, seed=seed), [1] * prompts).first
        for seed in range(setting.scale(ROUNDS, 1))
    )
    rate = prompts * prompt_flops(setting.large, tokens) / first / 1e12
    yield Figure("prefill_tokens", prompts * tokens / first, "tok/s")
    yield Figure("prefill_rate", rate, "TFLOP/s")
    yield Figure("prefill_of_peak", rate / PEAK, "", 0.45)
    yield Figure("prefill_of_gemm", rate / setting.figures["gemm"], "")


def long(setting: Setting) -> Iterator[Figure]:
    """One row at the end of the model's longest context: bound by reading keys and values too."""
    answer = setting.scale(128, 6)
    prompt = int(setting.large["max_position_embeddings"]) - answer - setting.scale(16, 64)
    engine = setting.engine(setting.large, rows=1, tokens=prompt + answer)
    engine.run(engine.prompts([setting.scale(256, 8)], seed=99), [setting.scale(16, 2)])
    found = engine.run(engine.prompts([prompt]), [answer])
    read = token_bytes(setting.large, prompt + answer / 2)
    yield Figure("long_tokens", found.decode, "tok/s")
    yield Figure("long_first", found.first, "s")
    yield Figure("long_of_copy", read * found.decode / setting.copy, "", 0.80)
    yield _on_reference("long", engine.on_reference())
    engine.close()


def int8(setting: Setting) -> Iterator[Figure]:
    """Decode of few and many rows again, with weights quantized at load."""
    yield from _quantized(setting, "int8")


def int4(setting: Setting) -> Iterator[Figure]:
    yield from _quantized(setting, "int4")


def fp8(setting: Setting) -> Iterator[Figure]:
    yield from _quantized(setting, "fp8")


def _quantized(setting: Setting, precision: str) -> Iterator[Figure]:
    answer, most = setting.scale(64, 4), setting.scale(256, 3)
    engine = setting.engine(setting.large, rows=most, tokens=context_of(setting) + answer, quantization=precision)
    engine.run(engine.prompts([setting.scale(256, 5)] * most, seed=99), [setting.scale(16, 2)] * most)
    for number in (1, setting.scale(32, 2), most):
        context = setting.scale(256, 5) if number == 1 else context_of(setting)
        rate = engine.run(engine.prompts([context] * number), [answer] * number).decode
        yield Figure(f"{precision}_{number}_tokens", rate, "tok/s")
        plain = setting.figures.get("decode_tokens" if number == 1 else f"decode_{number}_tokens")
        if plain:
            yield Figure(f"{precision}_{number}_of_bfloat16", rate / plain, "times")
    yield _on_reference(precision, engine.on_reference())
    engine.close()


def queue(setting: Setting) -> Iterator[Figure]:
    """A queue of the 8B shape in fp8, cache too, that is never empty, beside what TensorRT-LLM publishes for it."""
    requests, tokens = setting.scale(1000, 7), setting.scale(1000, 6)
    kept = {} if setting.tiny else {"kv_cache_dtype": "fp8"}
    engine = setting.engine(setting.large, rows=setting.scale(512, 2), tokens=2 * tokens, quantization="fp8", **kept)
    engine.run(engine.prompts([setting.scale(256, 8)], seed=99), [setting.scale(16, 2)])
    engine.run(engine.prompts([tokens] * requests), [tokens] * requests)
    rate = rate_between(engine.steps, tokens, setting.scale(200, 2), setting.scale(900, 6))
    yield Figure("queue_fp8", rate, "tok/s", 0.9 * PUBLISHED)
    yield Figure("queue_published_tensorrt_llm", PUBLISHED, "tok/s, published: other machine, H200")
    yield _on_reference("queue", engine.on_reference())
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
        for file in folder.glob("*.safetensors*"):  # what cannot be loaded shall not fail the other measurements
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
