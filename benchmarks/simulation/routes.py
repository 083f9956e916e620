"""Who gets a request: the router's own policy, and those that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from tessera.routing import PrefixRouting
from tessera.routing.policy import ReplicaLoads


class RoutingPolicy(Protocol):
    """Chooses among replicas, which are numbers; sets of them are bits of an int. As PrefixRouting."""

    def add(self, replica: int) -> None: ...

    def choose(self, blocks: Sequence[bytes], available: int) -> int | None: ...

    def begin(self, replica: int, blocks: Sequence[bytes]) -> None: ...

    def finish(self, replica: int) -> None: ...


class LeastLoaded:
    """The replica with the fewest requests in progress."""

    def __init__(self) -> None:
        self._loads = ReplicaLoads()

    def add(self, replica: int) -> None:
        self._loads.add(replica)

    def choose(self, blocks: Sequence[bytes], available: int) -> int | None:
        return self._loads.least(available)

    def begin(self, replica: int, blocks: Sequence[bytes]) -> None:
        self._loads.change(replica, 1)

    def finish(self, replica: int) -> None:
        self._loads.change(replica, -1)


class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._next = 0

    def add(self, replica: int) -> None:
        """Only those that are available matter."""

    def choose(self, blocks: Sequence[bytes], available: int) -> int | None:
        if not available:
            return None
        behind = available >> self._next << self._next or available
        chosen = (behind & -behind).bit_length() - 1
        self._next = chosen + 1
        return chosen

    def begin(self, replica: int, blocks: Sequence[bytes]) -> None:
        """Loads do not matter."""

    def finish(self, replica: int) -> None:
        """Loads do not matter."""


ROUTES: Mapping[str, Callable[[int], RoutingPolicy]] = MappingProxyType(
    {
        "prefix": PrefixRouting,
        "least-loaded": lambda capacity: LeastLoaded(),
        "round-robin": lambda capacity: RoundRobin(),
    }
)
"""By name, what makes one for replicas whose cache has room for so many blocks of prompts."""
