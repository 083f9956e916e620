"""Traffic: requests with their times, lengths and what their prompts share, drawn from a seed or read from a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from tessera.arrays import Array
from tessera.cli.bench.workload import arrivals

MOONCAKE_BLOCK = 512
"""Tokens of a prompt for each of its hash_ids in traces of Mooncake
(https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces)."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a prompt. Two pieces with the same content begin with the same tokens."""

    content: int
    # In tokens.
    length: int


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace, whose number is its place there."""

    # Seconds after the start, or after the end of the request `after`.
    at: float
    # Of its prompt.
    pieces: Sequence[Piece]
    # In tokens, with a content of its own.
    answer: Piece
    # The request whose answer its prompt goes on from; None if it arrives by itself.
    after: int | None = None

    @property
    def prompt_length(self) -> int:
        return sum(piece.length for piece in self.pieces)


class Contents:
    """The tokens of pieces."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed, self._vocab_size = seed, vocab_size

    def tokens(self, pieces: Sequence[Piece]) -> Array:
        """[tokens] int32."""
        return np.concatenate([self._drawn(piece) for piece in pieces])

    def _drawn(self, piece: Piece) -> Array:
        drawn: Array = np.random.default_rng((self._seed, piece.content)).integers(
            self._vocab_size, size=piece.length, dtype=np.int32
        )
        return drawn


# ---- drawn -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Of a lognormal distribution, in tokens."""

    median: float
    # Of the logarithm; 0 for equal lengths.
    sigma: float
    # Longer ones are cut to it.
    longest: int

    def draw(self, random: np.random.Generator) -> int:
        return int(np.clip(round(self.median * math.exp(self.sigma * random.standard_normal())), 1, self.longest))


@dataclass(frozen=True)
class Traffic:
    """Sessions that begin at random times; each has a system prompt that others have too, and turns of one user."""

    # Requests in a second, all turns counted, on average.
    rate: float
    # In which sessions begin.
    seconds: float
    # Of what a user says in a turn.
    user: Lengths
    # Of answers.
    answers: Lengths
    # Shape of the gaps' gamma distribution: 1 is a Poisson process, lower is burstier.
    burstiness: float = 1.0
    # Different system prompts; the n-th is chosen n times less often than the first. 0 for none.
    num_systems: int = 20
    # Of each, in tokens.
    system_length: int = 1000
    # Turns of a session on average, geometrically distributed.
    turns: float = 1.0
    # Between an answer and the next turn, on average; exponentially distributed.
    think_seconds: float = 20.0
    # A prompt gets no longer: the session ends before.
    max_prompt: int = 8000

    def draw(self, seed: int) -> list[TracedRequest]:
        """Requests; those that arrive by themselves are in order of time. Raises ValueError."""
        room = self.max_prompt - self.system_length * bool(self.num_systems)
        if room < 1:
            raise ValueError(f"system prompts of {self.system_length} tokens leave no room in {self.max_prompt}")
        random = np.random.default_rng((seed, 1))
        sessions = self.rate / self.turns
        times = arrivals(max(round(sessions * self.seconds), 1), sessions, self.burstiness, seed)
        weights = 1.0 / np.arange(1, self.num_systems + 1)
        systems = random.choice(self.num_systems, len(times), p=weights / weights.sum()) if self.num_systems else None
        requests: list[TracedRequest] = []
        content = self.num_systems
        for session, began in enumerate(times):
            pieces: tuple[Piece, ...] = () if systems is None else (Piece(int(systems[session]), self.system_length),)
            after, at = None, began
            for _ in range(int(random.geometric(1 / self.turns))):
                pieces = (*pieces, Piece(content, min(self.user.draw(random), room)))
                answer = Piece(content + 1, self.answers.draw(random))
                content += 2
                request = TracedRequest(at, pieces, answer, after)
                if request.prompt_length > self.max_prompt:  # a later turn: the first one fits
                    break
                requests.append(request)
                after, at = len(requests) - 1, float(random.exponential(self.think_seconds))
                pieces = (*pieces, answer)
        return requests


# ---- recorded --------------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of ours."""

    # In seconds.
    time: float
    prompt_tokens: int
    output_tokens: int
    # What the prompt begins with; equal for prompts that begin alike.
    prefix_id: int | None = None
    # Of the prompt, that are the prefix.
    prefix_tokens: int = 0


class _MooncakeLine(msgspec.Struct):
    """A line of a trace of Mooncake."""

    # In milliseconds.
    timestamp: float
    input_length: int
    output_length: int
    # Of the prompt's blocks of 512 tokens; the last may be partly full.
    hash_ids: list[int]


def read_trace(path: Path, *, speed: float = 1.0) -> list[TracedRequest]:
    """A recorded trace: a JSON object per line, ours or Mooncake's. speed: 2 makes everything arrive in half the time.
    Raises ValueError, which names the line."""
    requests: list[TracedRequest] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            requests.append(_parsed(text, number, speed))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error
    if not requests:
        raise ValueError(f"{path.name} has no requests.")
    return sorted(requests, key=lambda request: request.at)


def _parsed(text: str, number: int, speed: float) -> TracedRequest:
    """Contents that only this request has: 3 times its number, and 1 more for the answer."""
    if '"hash_ids"' in text:
        mooncake = msgspec.json.decode(text, type=_MooncakeLine)
        blocks = len(mooncake.hash_ids)
        rest = mooncake.input_length - (blocks - 1) * MOONCAKE_BLOCK
        if not blocks or not 0 < rest <= MOONCAKE_BLOCK:
            raise ValueError(f"{blocks} hash_ids do not fit a prompt of {mooncake.input_length} tokens")
        lengths = [*[MOONCAKE_BLOCK] * (blocks - 1), rest]
        # Blocks that are alike in their order begin alike; contents of other kinds have other remainders.
        pieces = [Piece(3 * one + 2, size) for one, size in zip(mooncake.hash_ids, lengths, strict=True)]
        at, answer = mooncake.timestamp / 1000, mooncake.output_length
    else:
        line = msgspec.json.decode(text, type=_Line)
        prefix = line.prefix_tokens if line.prefix_id is not None else 0
        if not 0 <= prefix <= line.prompt_tokens or line.prompt_tokens < 1:
            raise ValueError(f"{prefix} tokens of a prefix in a prompt of {line.prompt_tokens}")
        pieces = [] if not prefix or line.prefix_id is None else [Piece(3 * line.prefix_id + 2, prefix)]
        if line.prompt_tokens > prefix:
            pieces.append(Piece(3 * number, line.prompt_tokens - prefix))
        at, answer = line.time, line.output_tokens
    if at < 0 or answer < 1:
        raise ValueError("a time before the start, or an answer without tokens")
    return TracedRequest(at / speed, pieces, Piece(3 * number + 1, answer))
