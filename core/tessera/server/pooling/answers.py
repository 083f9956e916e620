"""Answers of requests that pool: made once all numbers are there, and written beside the event loop if these are
many."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from tessera.server.assembly import Assembly, Large, encoded
from tessera.server.generation.usage import TokenUsage

_FEW = 4096
"""Numbers that take the event loop some tenths of a millisecond."""


@dataclass(frozen=True)
class PoolingAnswer:
    """A GenerationAnswer."""

    # runs the request
    whole: Callable[[], Coroutine[Any, Any, msgspec.Struct | list[bytes]]]


class PoolingUsage(msgspec.Struct):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0

    @classmethod
    def from_tokens(cls, tokens: TokenUsage) -> PoolingUsage:
        return cls(tokens.num_prompt_tokens, tokens.num_tokens)


def is_large(num_numbers: int) -> bool:
    """Whether that many numbers would hold up the event loop."""
    return num_numbers > _FEW


async def written(assembly: Assembly, answer: Large, data: Iterable[Large], num_numbers: int) -> list[bytes]:
    """The JSON of an answer whose list `data` is empty, with these elements in it, each made when it is written.
    num_numbers: of all of them."""

    def write() -> list[bytes]:
        return list(encoded(answer, data=iter(data)))

    return await assembly.run(write) if is_large(num_numbers) else write()


async def written_list(assembly: Assembly, elements: Iterable[Any], num_numbers: int) -> list[bytes]:
    """The same of a list that is the whole answer."""

    def write() -> list[bytes]:
        pieces = [(b"," if index else b"[") + msgspec.json.encode(one) for index, one in enumerate(elements)]
        return [*pieces, b"]"]

    return await assembly.run(write) if is_large(num_numbers) else write()
