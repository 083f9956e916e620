"""What a front end may ask of whoever answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, str]
"""A role and a content."""

Prompt = str | Sequence[int]

Sampling = Mapping[str, Any]
"""Fields of SamplingParams by their names, which are also those of a request's body; what is absent is the model's or
the server's default."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What came at once. num_tokens: new tokens, 0 where that was not said. usage: of the whole request, on one of its
    last pieces."""

    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None


class Client(Protocol):
    """Streams answers. Closing a stream ends its request. Both raise what went wrong as a TesseraError."""

    @property
    def model(self) -> str: ...

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of prompt and answer together; None where that is not known."""
        ...

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> AsyncGenerator[Piece, None]: ...

    def complete(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]: ...
