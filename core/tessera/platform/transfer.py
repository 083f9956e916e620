"""Transfers of KV caches between engines: what a connector implements, and what it moves.

An engine that has computed a prompt lends its blocks under a lease, and another one fetches them before it goes on with
the request. What travels is in canonical form: by layer, by plane in the order of names, token after token, each as
(head, dim). It depends neither on block sizes nor on where a platform keeps its bytes. Engines whose blocks are alike
may exchange these as they are.

Layers that keep every token send all of them; those with a sliding window only what the next token sees; and a layer
with a state sends the one behind the last token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from tessera.arrays import Array
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.attention import ITEMSIZE, Plane

if TYPE_CHECKING:
    from tessera.config.kv_transfer import KVTransferConfig

ALIGNMENT = 8
"""Bytes: each plane's part of a piece begins at a multiple."""


class PlaneFormat(msgspec.Struct, frozen=True, array_like=True):
    """One plane of a layer, such as its keys, in canonical form."""

    name: str
    dtype: str
    # (name, size) of what a token, or a state, has, from the slowest axis to the fastest.
    axes: tuple[tuple[str, int], ...]

    @classmethod
    def from_plane(cls, plane: Plane) -> PlaneFormat:
        sizes: dict[str, int] = {}
        for i in plane.canonical_order:
            name, size = plane.axes[i]
            sizes[name] = sizes.get(name, 1) * size
        sizes.pop("token", None)
        return cls(plane.name, plane.dtype, tuple(sizes.items()))

    @property
    def token_bytes(self) -> int:
        return prod(size for _, size in self.axes) * ITEMSIZE[self.dtype]


class LayerFormat(msgspec.Struct, frozen=True, array_like=True):
    """What one layer keeps of a token, or of all tokens as a state."""

    layer: int
    # In the order of their names.
    planes: tuple[PlaneFormat, ...]
    # Tokens that a query sees, itself included; None: all before it.
    window: int | None = None
    # Whether it keeps a state and no tokens.
    is_state: bool = False

    def piece_bytes(self, count: int) -> int:
        """Bytes of so many tokens, or of one state."""
        parts = [count * plane.token_bytes for plane in self.planes]
        return sum(part + -part % ALIGNMENT for part in parts)


class Section(NamedTuple):
    """Layers of which the same tokens travel, or one layer with a state."""

    layers: tuple[LayerFormat, ...]
    # Of each of them, as LayerFormat has them.
    window: int | None
    is_state: bool

    def first_token(self, first: int, last: int, unit: int) -> int:
        """Where it begins if tokens first to last (exclusive) are wanted, multiples of the unit: at the last token that
        has a state, or at the unit in which the window of the token behind them begins."""
        if self.is_state:
            return last - 1
        seen = 0 if self.window is None else max(last - self.window + 1, 0)
        return max(first, seen - seen % unit)

    def piece_bytes(self, count: int) -> int:
        """Bytes of so many tokens of its layers, or of one state."""
        return sum(layer.piece_bytes(count) for layer in self.layers)


class KVPiece(NamedTuple):
    """What is read, sent and written at once: tokens of one section, or the state behind one token."""

    # Its number.
    section: int
    first: int
    # Exclusive.
    last: int


def sections_of(layers: Sequence[LayerFormat]) -> tuple[Section, ...]:
    """Of the layers of a cache, in the order in which they travel."""
    by_window: dict[int | None, list[LayerFormat]] = {}
    for layer in layers:
        if not layer.is_state:
            by_window.setdefault(layer.window, []).append(layer)
    tokens = (Section(tuple(own), window, is_state=False) for window, own in by_window.items())
    return (*tokens, *(Section((layer,), None, is_state=True) for layer in layers if layer.is_state))


class CacheFormat(msgspec.Struct, frozen=True, array_like=True):
    """What two engines must have in common to exchange caches."""

    # SHA-256 of what the numbers depend on: configuration and weights; hexadecimal.
    model: str
    # In the order of their numbers.
    layers: tuple[LayerFormat, ...]

    @property
    def sections(self) -> tuple[Section, ...]:
        return sections_of(self.layers)

    def pieces(self, first: int, last: int, unit: int, each: int) -> list[KVPiece]:
        """All that travels if tokens first to last (exclusive) are wanted, multiples of the unit, in pieces of at most
        `each` tokens."""
        pieces = []
        for number, section in enumerate(self.sections):
            starts = range(section.first_token(first, last, unit), last, each)
            pieces += [KVPiece(number, start, min(start + each, last)) for start in starts]
        return pieces

    def piece_bytes(self, piece: KVPiece) -> int:
        return self.sections[piece.section].piece_bytes(piece.last - piece.first)

    def most_bytes(self, num_tokens: int) -> int:
        """Of the largest piece of at most so many tokens."""
        return max(section.piece_bytes(1 if section.is_state else num_tokens) for section in self.sections)


@dataclass(frozen=True)
class TokenBlocks:
    """The blocks of consecutive tokens, which stay what they are as long as somebody holds them."""

    # The position of the first token of the first block of each group.
    start: int
    # By group, [blocks] int32, null where the tokens of a block do not travel. Of a group of states, for each unit the
    # one behind its last token.
    blocks: tuple[Array, ...]


class TokenStore(ABC):
    """Reads and writes an engine's cache by tokens, from any thread, between steps and beside them. A state is read and
    written as what the one token before it has."""

    # Without the model's digest. sections_of() them are what pieces are of.
    layers: tuple[LayerFormat, ...]
    # Says how blocks have their bytes: where two stores say the same, tokens travel as the blocks they are in, without
    # a copy. Empty where the host cannot read and write the cache's own memory, and memory() is not called.
    block_format: str = ""
    # Tokens: what is written begins and ends at multiples; best for reading too.
    unit: int

    @abstractmethod
    def holds(self, tokens: TokenBlocks, piece: KVPiece) -> bool:
        """Whether there are blocks of all of it."""

    @abstractmethod
    def read(self, tokens: TokenBlocks, piece: KVPiece, out: memoryview) -> None:
        """Copies a piece in canonical form. out: CacheFormat.piece_bytes() long."""

    @abstractmethod
    def write(self, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        """The reverse, for tokens that nobody reads yet; they begin and end at multiples of the unit."""

    def memory(self, tokens: TokenBlocks, piece: KVPiece) -> Sequence[memoryview]:
        """The cache's own memory of a piece whose tokens begin and end at multiples of the unit, one part after the
        other as block_format has them. What is written there is of tokens that nobody reads yet."""
        raise NotImplementedError

    @abstractmethod
    def enter_thread(self) -> None:
        """Called in each thread before it reads or writes."""


@dataclass(frozen=True)
class Lease:
    """A prompt's cache that an engine keeps for another one."""

    # Nobody can guess it.
    request_id: str
    tokens: TokenBlocks
    # From the prompt's first token on.
    num_tokens: int
    # Of these tokens and what they stand for.
    digest: bytes
    # Numbers of tokens behind which it has states, and from which alone another engine can go on; None: from any.
    state_tokens: tuple[int, ...] | None = None


class Leases(Protocol):
    """An engine's leases, asked by a connector's threads. An engine takes back blocks whose lease has expired, and may
    do so earlier if it has no other room."""

    @property
    def seconds(self) -> float:
        """How long one lasts from the last sign of whoever wants it."""

    def renew(self, request_id: str) -> bool:
        """Whoever wants it is there and waits. False if there is no such lease."""

    def reading(self, request_id: str, digest: bytes) -> AbstractContextManager[Lease | None]:
        """The lease, which stays while it is read; None if there is none, or if it is of other tokens."""

    def is_called_back(self, request_id: str) -> bool:
        """Whether the engine wants the blocks: whoever reads them should stop."""

    def end(self, request_id: str) -> None:
        """They have arrived."""

    def add_sent(self, num_bytes: int) -> None:
        """For the engine's counters."""


class TransferError(Exception):
    """Why a cache did not arrive, in one line: a clause that begins with a lower-case letter."""


class Fetch(ABC):
    """A cache on its way. Methods are called by the engine's thread, and only cancel() may wait."""

    # Tokens that have been written in all layers that need them, from start()'s first on; grows.
    num_tokens: int = 0
    num_bytes: int = 0

    @abstractmethod
    def start(self, tokens: TokenBlocks, first: int, last: int) -> None:
        """There is room now for tokens first to last (exclusive). Until then the connector keeps the lease."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether all has been written, or nothing more will be."""

    @abstractmethod
    def error(self) -> TransferError | None:
        """Why not all arrived, once it is done."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends it. When this returns nothing more is written. The source is told that the lease is of no more use, if
        it can be reached at once."""


@dataclass(frozen=True)
class EngineCache:
    """What a connector moves from and to."""

    engine_id: str
    format: CacheFormat
    store: TokenStore
    leases: Leases
    # The cluster's key; empty without one.
    key: bytes


class KVConnector(ABC):
    """Moves caches between engines. An engine makes one, at its start, by (config, cache), which raises ConfigError. A
    method is called by the engine's thread and must not wait."""

    def __init__(self, config: KVTransferConfig, cache: EngineCache) -> None:
        self.config = config
        self.cache = cache

    @abstractmethod
    def describe(self, lease: Lease) -> KVTransferParams:
        """What the other engine is told, by way of the client, to find this lease."""

    @abstractmethod
    def fetch(self, params: KVTransferParams, digest: bytes) -> Fetch:
        """Begins to fetch what describe() said in another engine. digest: of the tokens that are expected."""

    @abstractmethod
    def close(self) -> None:
        """Ends all transfers. When this returns nothing is read or written."""
