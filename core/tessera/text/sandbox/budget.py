"""What one rendering may still spend: time, memory, output."""

from __future__ import annotations

import sys
import time
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# A value nested deeper than this is refused before C code recurses into it: the hash of a deep tuple ends the process.
MAX_DEPTH = 100
# Characters that every value counts for besides its text, so that many tiny values are not free.
_NODE_WEIGHT = 16
_CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


class LimitExceededError(Exception):
    """A template crossed a limit. Not an error of Jinja or a ValueError, so no filter takes it for a missing value."""


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one rendering.

    seconds: wall time. output_chars: characters of the prompt. memory_bytes: sum over everything the template
    creates, freed or not; what is alive at once stays under about twice as much.
    """

    seconds: float = 1.0
    output_chars: int = 1_000_000
    memory_bytes: int = 64 << 20


class Budget:
    """The remaining time and memory of one rendering; its methods raise LimitExceededError when there is none left."""

    __slots__ = ("_deadline", "_limits", "_max_weight", "_memory_left")

    def __init__(self, limits: TemplateLimits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        self._memory_left = limits.memory_bytes
        self._max_weight = 4 * limits.output_chars

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise LimitExceededError(f"it took longer than {self._limits.seconds:g} s")

    def require(self, num_bytes: int) -> None:
        """Check, before an operation starts, that its result of at most `num_bytes` bytes could be paid for."""
        if num_bytes > self._memory_left:
            raise LimitExceededError(f"it needs more than {self._limits.memory_bytes / (1 << 20):g} MiB of memory")

    def require_text(self, num_chars: int) -> None:
        # Python keeps text of the widest characters in 4 bytes each.
        self.require(4 * num_chars)

    def charge(self, value: T, bytes_per_item: int = 0) -> T:
        """Pay for a value that was just created; `bytes_per_item` where the items of a container are new as well."""
        if isinstance(value, (str, int)):
            self.spend(sys.getsizeof(value))
        elif isinstance(value, (list, tuple, dict)):
            self.spend(sys.getsizeof(value) + bytes_per_item * len(value))
        return value

    def spend(self, num_bytes: int) -> None:
        self.require(num_bytes)
        self._memory_left -= num_bytes

    def weigh(self, value: Any) -> int:
        """Characters that a walk through the whole of `value` meets, shared parts counted each time they are met.

        Called before anything that goes deep (str, JSON, comparison, hash, sort): thirty nested lists of twice the
        same list are small in memory and endless to print.
        """
        weight = 0
        level = [value]
        for _ in range(MAX_DEPTH):
            below: list[Any] = []
            for item in level:
                weight += _NODE_WEIGHT
                if isinstance(item, str):
                    weight += len(item)
                elif isinstance(item, int):
                    weight += item.bit_length() // 3
                elif isinstance(item, _CONTAINERS):
                    self._check_weight(weight + _NODE_WEIGHT * (len(below) + len(item)))
                    below.extend(item)
                    if isinstance(item, dict):
                        below.extend(item.values())
            self._check_weight(weight)
            if not below:
                return weight
            level = below
        raise LimitExceededError(f"it nests values deeper than {MAX_DEPTH} levels")

    def _check_weight(self, weight: int) -> None:
        if weight > self._max_weight:
            raise LimitExceededError("it prints or compares a value that is too large")

    def text(self, value: Any) -> str:
        """`str(value)`, once it is known to be small enough."""
        if type(value) is str:
            return value
        self.weigh(value)
        return str(value)


class LazyItems:
    """An iterator that looks at the clock for each item, so that C code that consumes it cannot run away.

    True whether or not items are left, as the generators of Jinja's own filters are.
    """

    __slots__ = ("_budget", "_items")

    def __init__(self, budget: Budget, items: Iterator[Any]) -> None:
        self._budget = budget
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._budget.tick()
        return next(self._items)
