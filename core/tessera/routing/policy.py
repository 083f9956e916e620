"""The longest known prefix within a bound on load.

What a replica has cached is taken from what was sent to it: the blocks of prompts, of which the least recently sent are
forgotten when they are more than it has room for. Replicas are numbers, and sets of them are bits of an int, so that a
choice among a thousand costs little more than one among two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

SLACK = 4
"""Requests that a replica may have more than its share of, whatever the load."""
IMBALANCE = 1.5
"""Times its share of the load that a replica may have for the sake of a prefix."""


class PrefixIndex:
    """Which replicas have probably cached which blocks. capacity: blocks of one replica."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(capacity, 1)
        # By block, the replicas that have it, as bits.
        self._holders: dict[bytes, int] = {}
        # By replica, its blocks, the one sent least recently first.
        self._blocks: dict[int, OrderedDict[bytes, None]] = {}

    def prefixes(self, blocks: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Sets of replicas that have a prefix, and its number of blocks; the longest first."""
        longest: list[tuple[int, int]] = []
        have = -1
        for index, block in enumerate(blocks):
            holders = have & self._holders.get(block, 0)
            if not holders:
                break
            if holders != have:
                longest.append((holders, index + 1))
            else:
                longest[-1] = (holders, index + 1)
            have = holders
        return reversed(longest)

    def insert(self, replica: int, blocks: Sequence[bytes]) -> None:
        """These blocks were sent to a replica."""
        own = self._blocks.setdefault(replica, OrderedDict())
        bit = 1 << replica
        for block in reversed(blocks):  # the beginning of a prompt is the last to be forgotten
            if block in own:
                own.move_to_end(block)
            else:
                own[block] = None
                self._holders[block] = self._holders.get(block, 0) | bit
        while len(own) > self._capacity:
            self._drop(own.popitem(last=False)[0], bit)

    def forget(self, replica: int) -> None:
        """A replica has lost all that it had cached."""
        for block in self._blocks.pop(replica, ()):
            self._drop(block, 1 << replica)

    def _drop(self, block: bytes, bit: int) -> None:
        holders = self._holders[block] & ~bit
        if holders:
            self._holders[block] = holders
        else:
            del self._holders[block]


class ReplicaLoads:
    """How many requests each replica has in progress, of those that were added."""

    def __init__(self) -> None:
        self._loads: dict[int, int] = {}
        # By load, the replicas that have it, as bits; no level is empty.
        self._levels: dict[int, int] = {}
        self._turn = 0

    def __getitem__(self, replica: int) -> int:
        return self._loads[replica]

    def add(self, replica: int, load: int = 0) -> None:
        self._loads[replica] = load
        self._levels[load] = self._levels.get(load, 0) | 1 << replica

    def remove(self, replica: int) -> int:
        """Returns its load."""
        load = self._loads.pop(replica)
        level = self._levels[load] & ~(1 << replica)
        if level:
            self._levels[load] = level
        else:
            del self._levels[load]
        return load

    def change(self, replica: int, by: int) -> None:
        self.add(replica, self.remove(replica) + by)

    def total(self, replicas: int) -> int:
        """Of a set of replicas."""
        return sum(load * (level & replicas).bit_count() for load, level in self._levels.items())

    def least(self, replicas: int, max_load: int | None = None) -> int | None:
        """The one of a set of replicas with the least load, in turn if there are several. None if all have more than
        max_load."""
        for load in sorted(self._levels):
            if max_load is not None and load > max_load:
                return None
            if found := self._levels[load] & replicas:
                behind = found >> self._turn << self._turn
                chosen = _lowest(behind or found)
                self._turn = chosen + 1
                return chosen
        return None


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class PrefixRouting:
    """Chooses among the replicas that were added, and knows what it sent to each."""

    def __init__(self, capacity: int) -> None:
        """capacity: blocks that one replica has room for."""
        self.loads = ReplicaLoads()
        self.index = PrefixIndex(capacity)

    def choose(self, blocks: Sequence[bytes], available: int) -> int | None:
        """The replica for a prompt. available: a set of replicas, as bits. None if there is none."""
        if not available:
            return None
        max_load = self._max_load(available)
        for holders, _ in self.index.prefixes(blocks):
            if (found := self.loads.least(holders & available, max_load)) is not None:
                return found
        return self.loads.least(available)

    def add(self, replica: int) -> None:
        self.loads.add(replica)

    def remove(self, replica: int) -> None:
        """None of its requests may be in progress."""
        self.loads.remove(replica)
        self.index.forget(replica)

    def begin(self, replica: int, blocks: Sequence[bytes]) -> None:
        """A request goes to a replica; finish() follows."""
        self.loads.change(replica, 1)
        self.index.insert(replica, blocks)

    def finish(self, replica: int) -> None:
        self.loads.change(replica, -1)

    def _max_load(self, available: int) -> int:
        """The load up to which a prefix decides, before the request is added."""
        share = self.loads.total(available) / available.bit_count()
        return int(IMBALANCE * share) + SLACK
