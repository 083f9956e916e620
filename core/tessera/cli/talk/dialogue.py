"""What is asked of a model: a conversation that grows, or texts that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol

from tessera.cli.client import Client, Message, Piece, Sampling


class Dialogue(Protocol):
    """greeting: what a user should know at the start. commands: what a line may say in place of a question, and what it
    does; it returns a note."""

    @property
    def greeting(self) -> str: ...

    @property
    def commands(self) -> Mapping[str, Callable[[], str]]: ...

    def answer(self, question: str) -> AsyncGenerator[Piece, None]: ...


class Conversation:
    """A chat. What was said before goes with every question."""

    def __init__(self, client: Client, sampling: Sampling, system: str | None) -> None:
        self._client = client
        self._sampling = sampling
        self._first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._first)

    @property
    def greeting(self) -> str:
        return (
            f"Talking with {self._client.model}. Ctrl-C stops an answer; /reset forgets the conversation; /exit, "
            "Ctrl-D or Ctrl-C at the prompt leaves."
        )

    @property
    def commands(self) -> Mapping[str, Callable[[], str]]:
        return {"/reset": self._reset}

    async def answer(self, question: str) -> AsyncGenerator[Piece, None]:
        """An answer that was stopped stays as far as it came; a question that got none is forgotten."""
        said: list[str] = []
        self._messages.append({"role": "user", "content": question})
        try:
            async with aclosing(self._client.chat(self._messages, self._sampling)) as pieces:
                async for piece in pieces:
                    said.append(piece.text)
                    yield piece
        finally:
            if text := "".join(said):
                self._messages.append({"role": "assistant", "content": text})
            else:
                self._messages.pop()

    def _reset(self) -> str:
        self._messages = list(self._first)
        return "The conversation is forgotten."


class Completions:
    """Each text is continued by itself."""

    def __init__(self, client: Client, sampling: Sampling) -> None:
        self._client = client
        self._sampling = sampling

    @property
    def greeting(self) -> str:
        return (
            f"{self._client.model} continues what you write. Ctrl-C stops it; /exit, Ctrl-D or Ctrl-C at the prompt "
            "leaves."
        )

    @property
    def commands(self) -> Mapping[str, Callable[[], str]]:
        return {}

    def answer(self, question: str) -> AsyncGenerator[Piece, None]:
        return self._client.complete(question, self._sampling)
