"""Sources of answers: a server over HTTP (remote.py), or this program's own engine (local.py)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]
"""A message with its role, and its content: a text, or parts of type "text" and "image_url" with a data URL."""

Prompt = str | Sequence[int]

Sampling = Mapping[str, Any]
"""Fields of SamplingParams by name, the same as in a request's body. Missing fields have the default of the model or
server."""


@dataclass(frozen=True, slots=True)
class RequestUsage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """One piece of a streamed answer. num_tokens: new tokens, 0 if unknown. usage: of the whole request, on one of the
    last pieces."""

    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    usage: RequestUsage | None = None


class Client(Protocol):
    """Streams answers. Closing a stream aborts its request. Both chat() and complete() raise TesseraError."""

    @property
    def model(self) -> str: ...

    @property
    def max_model_len(self) -> int | None:
        """In tokens, prompt and answer together; None if unknown."""
        ...

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]: ...

    def complete(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]: ...


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def model(self) -> str: ...

    @property
    def max_model_len(self) -> int | None:
        """In tokens; None if unknown."""
        ...

    async def post_embeddings(self, inputs: Sequence[Prompt], fields: Mapping[str, Any]) -> bytes:
        """The answer of /v1/embeddings. fields: of the request's body besides the inputs, such as dimensions. Raises
        TesseraError."""
        ...
