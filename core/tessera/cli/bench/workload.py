"""What is asked: prompts of random token ids and answers of given lengths, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.errors import ConfigError

MAX_PROMPTS = 10**6


@dataclass(frozen=True)
class Job:
    """prompt: token ids. output_len: tokens of its answer."""

    prompt: list[int]
    output_len: int


@dataclass(frozen=True)
class Lengths:
    """input_len, output_len: tokens. range_ratio: each length is drawn evenly from what is at most this share below or
    above. Raises ConfigError."""

    input_len: int
    output_len: int
    range_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("input-len", self.input_len), ("output-len", self.output_len)):
            if not 1 <= value <= 2**24:
                raise ConfigError(f"--{name} must be at least 1, got {value}.")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--random-range-ratio must be at least 0 and below 1, got {self.range_ratio:g}.")

    @property
    def inputs(self) -> tuple[int, int]:
        return _bounds(self.input_len, self.range_ratio)

    @property
    def outputs(self) -> tuple[int, int]:
        return _bounds(self.output_len, self.range_ratio)


def _bounds(length: int, ratio: float) -> tuple[int, int]:
    """Least and most, both included."""
    return max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))


def draw(lengths: Lengths, count: int, *, vocabulary: Array, seed: tuple[int, ...]) -> list[Job]:
    """vocabulary: token ids that prompts are drawn from. seed: its numbers together are one seed."""
    random = np.random.default_rng(seed)
    inputs = random.integers(*lengths.inputs, size=count, endpoint=True)
    outputs = random.integers(*lengths.outputs, size=count, endpoint=True)
    return [
        Job(vocabulary[random.integers(len(vocabulary), size=size)].tolist(), tokens)
        for size, tokens in zip(inputs.tolist(), outputs.tolist(), strict=True)
    ]


def check_fits(lengths: Lengths, max_model_len: int | None) -> None:
    """Raises ConfigError where the longest request is longer than the context."""
    most = lengths.inputs[1] + lengths.outputs[1]
    if max_model_len is not None and most > max_model_len:
        raise ConfigError(
            f"The longest requests have {most} tokens, but the model takes {max_model_len}; lower --input-len, "
            "--output-len or --random-range-ratio."
        )


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """Raises ConfigError. name: as the flag has it."""
    if not least <= value <= MAX_PROMPTS:
        raise ConfigError(f"--{name} must be from {least} to {MAX_PROMPTS}, got {value}.")
    return value


def lengths_of(values: Mapping[str, Any]) -> Lengths:
    """Of a command's flags. Raises ConfigError."""
    return Lengths(values["input_len"], values["output_len"], values["random_range_ratio"])
