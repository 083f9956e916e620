"""One run of an engine: what it loads, and the prompts that all engines get. Imports only the standard library, since
it runs in each peer's environment."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

PLAIN = "plain"
FILE = "file"  # as a GGUF file has its weights, which all engines load as it is
PRECISIONS = (PLAIN, "int8", "int4", FILE)
SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
TOLERANCES = {PLAIN: 0.1, "int8": 0.3, "int4": 1.5}  # nats by which a checked token may be less likely than the best
WIDEST = max(TOLERANCES.values())
CHECK_PROMPTS = 4
CHECK_TOKENS = 8
CHECK_SHARE = 4  # check prompts are this many times shorter than timed ones
CHECK_SEED = -1  # not the seed of any round


@dataclass(frozen=True)
class Task:
    """What a driver measures."""

    # Of the comparison.
    part: str
    # Its folder or GGUF file.
    model: str
    # What the driver loads; the model itself unless the peer needs a converted copy.
    weights: str
    dtype: str
    # Tokens of each prompt and each answer.
    input: int
    output: int
    # Numbers of concurrent prompts or, over HTTP, of clients.
    batches: Sequence[int]
    vocab: int
    threads: int
    seed: int
    # Of the weights; "plain" is that of dtype, "file" that of a GGUF file.
    precision: str = PLAIN
    # For Tessera; "" for the installed one.
    platform: str = ""
    # When the process was started, on the system's monotonic clock.
    began: float = 0.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        return cls(**json.loads(text))

    @property
    def room(self) -> int:
        """The number of tokens of the longest request."""
        return self.input + max(self.output, CHECK_TOKENS)


def checked_length(tokens: int) -> int:
    """The length of check prompts if timed prompts have this many tokens."""
    return max(1, tokens // CHECK_SHARE)


class Prompts:
    """Random token ids, the same for all engines but different in each round."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._draw = random.Random(task.seed)

    def drawn(self, count: int, length: int) -> list[list[int]]:
        """New prompts each time, so that nothing can be answered from a cache."""
        return _random(self._draw, self._task.vocab, count, length)

    def checked(self) -> list[list[int]]:
        """The check prompts, which the reference answers too."""
        return _random(random.Random(CHECK_SEED), self._task.vocab, CHECK_PROMPTS, checked_length(self._task.input))


def _random(draw: random.Random, vocab: int, count: int, length: int) -> list[list[int]]:
    return [[draw.randrange(vocab) for _ in range(length)] for _ in range(count)]
