"""Collectives of one group of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tessera.platform.device import Tensor


class Communicator(ABC):
    """A group of workers. rank, size: within the group. capturable: its collectives may be part of a captured graph."""

    rank: int
    size: int
    capturable: bool = False

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the group. May write it into x and return x."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks, concatenated along dim in rank order."""

    @abstractmethod
    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Writes the x of rank `source` into x and returns x."""

    @abstractmethod
    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        """A group of some ranks of this group. ranks: numbers in this group, in the order of the new one; every member
        passes the same. role: its purpose, such as "tensor", for logs. options: of the underlying library; unknown
        ones are ignored."""

    @abstractmethod
    def agree(self, values: Sequence[int]) -> Sequence[int]:
        """The elementwise maximum over the group, computed on the host."""

    def close(self) -> None:
        """Default: nothing."""


class Alone(Communicator):
    """A group of one."""

    rank, size, capturable = 0, 1, True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return self

    def agree(self, values: Sequence[int]) -> Sequence[int]:
        return values
