"""One of several models: how it is loaded, and what has become of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tessera.errors import TesseraError
from tessera.server.adapter_copies import AdapterCopies

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tessera.engine.async_engine import AsyncEngine

HostedState = Literal["unloaded", "loading", "loaded", "failed"]


@dataclass(frozen=True)
class LoadedHost:
    """A model that can be asked."""

    engine: AsyncEngine
    # answers requests for it
    app: Starlette
    # ends its engine and its workers
    close: Callable[[], Awaitable[None]]


class ConfiguredModel(Protocol):
    """A model whose configuration is known, and whose files are there."""

    async def plan(self) -> int:
        """Bytes that it will take, found out without loading it. Raises TesseraError."""
        ...

    async def load(self, copies: AdapterCopies) -> LoadedHost:
        """copies: the adapters that it has besides those of its configuration. Raises TesseraError."""
        ...


@dataclass(frozen=True)
class HostedEntry:
    """A model as the operator describes it."""

    # that requests give
    name: str
    # raises TesseraError
    configure: Callable[[], Awaitable[ConfiguredModel]]
    # names of its adapters that are there from the start
    adapters: Sequence[str] = ()


@dataclass(frozen=True)
class LoadFailure:
    error: TesseraError
    # on time.monotonic()
    at: float


class HostedModel:
    """The state of one entry. It is changed by HostedModels alone."""

    def __init__(self, entry: HostedEntry, now: float, is_taken: Callable[[str], bool]) -> None:
        """is_taken: whether any model of the server has a name."""
        self.entry = entry
        # The adapters that were loaded for it, which stay while it is unloaded.
        self.copies = AdapterCopies(is_taken)
        self.loaded: LoadedHost | None = None
        self.failure: LoadFailure | None = None
        # The task that loads it; there is one at a time.
        self.loading: asyncio.Task[None] | None = None
        # Waits for the end of its engine.
        self.watching: asyncio.Task[None] | None = None
        # Requests that it answers.
        self.num_uses = 0
        # Requests that wait for it.
        self.num_waiting = 0
        # When its last request ended, on time.monotonic().
        self.last_used = now
        # Others need its room: it answers what it has begun, and nothing else.
        self.leaving = False
        # As planned, while its size limits anything.
        self.num_bytes = 0
        self.num_loads = 0
        self.num_failures = 0

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def adapters(self) -> list[str]:
        """Their names, which requests may give as a model."""
        return [*self.entry.adapters, *self.copies.by_name]

    @property
    def state(self) -> HostedState:
        if self.loading is not None:
            return "loading"
        if self.loaded is not None:
            return "loaded"
        return "unloaded" if self.failure is None else "failed"

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self.loaded is not None and not self.leaving

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss it now. A response in the background is a request that only its engine has."""
        return self.num_uses == 0 and self.num_waiting == 0 and not self.is_computing

    @property
    def is_computing(self) -> bool:
        return self.loaded is not None and self.loaded.engine.num_unfinished > 0
