"""The workload: prompts of random token ids, answers of given lengths, and arrival times, reproducible by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array
from tessera.config.flags import flag
from tessera.config.locate import HubAccess, find_tokenizer
from tessera.errors import ConfigError
from tessera.text import Vocabulary

METRICS = ("ttft", "tpot", "e2el")
_USUAL_VOCABULARY = 1000


@dataclass(frozen=True)
class BenchRequest:
    """prompt: token ids. output_len: number of tokens to generate."""

    prompt: list[int]
    output_len: int


@dataclass(frozen=True, kw_only=True)
class PromptLengths:
    """Lengths of prompts, in tokens."""

    input_len: int = flag(256, "Prompt length in tokens.", low=1, high=2**24, aliases=("--random-input-len",))
    range_ratio: float = flag(
        0.0, "Draw each length uniformly from up to this fraction below or above it.", name="random_range_ratio", low=0,
        below=1, metavar="FRACTION",
    )  # fmt: skip

    @property
    def inputs(self) -> tuple[int, int]:
        return _bounds(self.input_len, self.range_ratio)

    @property
    def longest(self) -> int:
        """The most tokens that a request may have."""
        return self.inputs[1]

    @property
    def options(self) -> str:
        """The options that make requests shorter."""
        return "--input-len or --random-range-ratio"


@dataclass(frozen=True, kw_only=True)
class Lengths(PromptLengths):
    """The same, and those of answers."""

    output_len: int = flag(64, "Answer length in tokens.", low=1, high=2**24, aliases=("--random-output-len",))

    @property
    def outputs(self) -> tuple[int, int]:
        return _bounds(self.output_len, self.range_ratio)

    @property
    def longest(self) -> int:
        return self.inputs[1] + self.outputs[1]

    @property
    def options(self) -> str:
        return "--input-len, --output-len or --random-range-ratio"


def _bounds(length: int, ratio: float) -> tuple[int, int]:
    """Minimum and maximum, both inclusive."""
    return max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))


def draw(lengths: Lengths, count: int, *, vocabulary: Array, seed: tuple[int, ...]) -> list[BenchRequest]:
    """Draws jobs. vocabulary: the token ids to draw from. seed: its numbers form a single seed."""
    random = np.random.default_rng(seed)
    outputs = random.integers(*lengths.outputs, size=count, endpoint=True).tolist()
    prompts = draw_prompts(random, lengths, count, vocabulary)
    return [BenchRequest(prompt, tokens) for prompt, tokens in zip(prompts, outputs, strict=True)]


def draw_prompts(random: np.random.Generator, lengths: PromptLengths, count: int, vocabulary: Array) -> list[list[int]]:
    """Prompts of token ids of the vocabulary."""
    sizes = random.integers(*lengths.inputs, size=count, endpoint=True).tolist()
    return [vocabulary[random.integers(len(vocabulary), size=size)].tolist() for size in sizes]


def check_fits(lengths: PromptLengths, max_model_len: int | None) -> None:
    """Raises ConfigError if the longest request does not fit in the context."""
    if max_model_len is not None and lengths.longest > max_model_len:
        raise ConfigError(
            f"The longest requests have {lengths.longest} tokens, but the model supports {max_model_len}; lower "
            f"{lengths.options}."
        )


def vocabulary_of(tokenizer: str | None, vocab_size: int | None) -> Array:
    """The token ids to draw a server's prompts from. tokenizer: folder or repository; uses all its tokens except the
    special ones, which a user's text does not contain. vocab_size: uses all ids below it. Raises ConfigError or
    ModelError."""
    if tokenizer is None:
        return np.arange(_USUAL_VOCABULARY if vocab_size is None else vocab_size)
    if vocab_size is not None:
        raise ConfigError("--vocab-size has no meaning with --tokenizer; remove one of them.")
    read = Vocabulary.from_folder(find_tokenizer(tokenizer, HubAccess()))
    ordinary = [token for token in range(read.vocab_size) if token not in read.special_ids]
    if not ordinary:
        raise ConfigError(f"--tokenizer '{tokenizer}' has only special tokens.")
    return np.array(ordinary)


def arrivals(count: int, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """Arrival times in seconds after the start, in order. request_rate: requests per second; infinity for all at once.
    burstiness: shape of the gaps' gamma distribution; 1 is a Poisson process, lower is burstier, higher more even."""
    if math.isinf(request_rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (request_rate * burstiness), size=count)
    times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist() if count else []
    return times


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Parses texts such as "ttft:200" (milliseconds) to seconds by metric. Raises ConfigError."""
    objectives = {}
    for text in (part for one in texts for part in one.replace(",", " ").split()):
        metric, _, limit = text.partition(":")
        value = _number(limit)
        if metric not in METRICS or value is None:
            raise ConfigError(f"--goodput '{text}' must be one of {', '.join(METRICS)} with milliseconds: ttft:200.")
        objectives[metric] = value / 1000
    return objectives


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
