"""Reads large bodies and puts large answers together beside the event loop, which goes on serving everyone else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec

from tessera.engine.logprobs import LogprobArrays
from tessera.request import CompletionOutput

T = TypeVar("T")
SMALL = 128
"""Values of an answer (see num_values) that take the event loop some tenths of a millisecond: it may have them to write
for each of many streams before it does anything else."""
SLICE = 256
"""Elements of a list that are encoded at once: encoding holds the interpreter's lock."""
FEW = 32
"""Encoded pieces that take the event loop little."""


class Large(msgspec.Struct):
    """A part of an answer that is encoded field by field, and its lists in slices, since it may be very large."""


class Assembly:
    """Runs what turns large bodies into requests, and large outputs into answers, on one thread, request after request.
    One thread, because several would only wait for each other and for the event loop: all need the interpreter's lock.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="assembly")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns the result of work on something large, or raises its error."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def encode(self, body: msgspec.Struct) -> list[bytes]:
        """The JSON of an answer, in pieces. The last piece of a Large one is its closing brace."""
        encoding = encoded(body)
        pieces = list(islice(encoding, FEW))
        return pieces if len(pieces) < FEW else pieces + await self.run(lambda: list(encoding))

    async def close(self) -> None:
        """Does not begin what still waits; its requests have ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def is_small(answers: Iterable[CompletionOutput], prompts: Iterable[Sequence[Any]] = ()) -> bool:
    """Whether the event loop makes the answer itself: then nobody waits, not even for a coroutine."""
    return num_values(answers, prompts) <= SMALL


def num_values(answers: Iterable[CompletionOutput], prompts: Iterable[Sequence[Any]] = ()) -> int:
    """The tokens of answers and of the log probabilities of prompts, each with its alternatives."""
    lists = [answer.logprobs or answer.token_ids for answer in answers]
    return sum(len(values) * _width(values) for values in (*lists, *prompts) if values)


def _width(values: Sequence[Any]) -> int:
    """Entries at a position; the first of a prompt has none."""
    if isinstance(values, LogprobArrays):
        return values.width
    last = values[-1]
    return len(last) if isinstance(last, dict) else 1


def taken(values: list[T]) -> Iterator[T]:
    """The elements of a list, which loses each as it is read: what is very large is freed bit by bit, too."""
    values.reverse()
    while values:
        yield values.pop()


def encoded(value: Any, **lists: Iterator[Large]) -> Iterator[bytes]:
    """The JSON of a value, in pieces that are quick to encode. lists: the elements of its empty lists, by field, which
    are made one after the other so that they are never all in memory."""
    if isinstance(value, Large):
        yield from _fields(value, lists)
    elif isinstance(value, list) and len(value) > 0:
        yield from _elements(value)
    else:
        yield msgspec.json.encode(value)


def in_one_piece(value: Large | None, length: int) -> bytes:
    """The JSON of a value. length: of its lists."""
    return msgspec.json.encode(value) if length <= SLICE else b"".join(encoded(value))


def _fields(value: Large, lists: Mapping[str, Iterator[Large]]) -> Iterator[bytes]:
    before = b"{"
    for name, key in _members(type(value)):
        member = getattr(value, name)
        if member is not msgspec.UNSET:
            yield before + key
            yield from _large_elements(lists[name]) if name in lists else encoded(member)
            before = b","
    yield b"}"


@cache
def _members(kind: type[Large]) -> tuple[tuple[str, bytes], ...]:
    """The names of a struct's fields, each with its key in JSON. Finding them takes longer than encoding a token."""
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, msgspec.json.encode(field.encode_name) + b":") for field in fields)


def _elements(values: list[Any]) -> Iterator[bytes]:
    if isinstance(values[0], Large):
        yield from _large_elements(values)
        return
    before = b"["
    for start in range(0, len(values), SLICE):
        yield before + msgspec.json.encode(values[start : start + SLICE])[1:-1]
        before = b","
    yield b"]"


def _large_elements(values: Iterable[Large]) -> Iterator[bytes]:
    before = b"["
    for value in values:
        yield before
        yield from encoded(value)
        before = b","
    yield b"]" if before == b"," else b"[]"
