"""The parts of a comparison: the task of each, and the figures that result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """name: of the value in a result. title: of its table, with the unit. less: whether smaller is better."""

    name: str
    title: str
    less: bool = False


@dataclass(frozen=True)
class Part:
    """input, output: default number of tokens of a prompt and an answer. batches: numbers of concurrent prompts, or
    clients."""

    name: str
    input: int
    output: int
    batches: tuple[int, ...]
    figures: tuple[Figure, ...]
    at: str = "batch"


DECODE = Figure("decode", "Decode, tokens/s")
PREFILL = Figure("prefill", "Prefill, tokens/s")
READY = Figure("ready_s", "Start to first token, s", less=True)

PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part("decode", 256, 64, (1, 8, 32), (DECODE,)),
        Part("prefill", 256, 1, (1, 8, 32), (PREFILL,)),
        Part("long", 4000, 64, (1, 4), (DECODE, PREFILL)),
        Part(
            "http",
            256,
            128,
            (1, 16),
            (
                Figure("output", "Answers, tokens/s"),
                Figure("ttft_p50_ms", "First token, median, ms", less=True),
                Figure("itl_p50_ms", "Between tokens, median, ms", less=True),
                Figure("itl_p95_ms", "Between tokens, 95th percentile, ms", less=True),
                READY,
            ),
            at="clients",
        ),
        Part("start", 32, 1, (1,), (READY,)),
    )
}
