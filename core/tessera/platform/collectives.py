"""Collectives of one group of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tessera.platform.device import Tensor


class Communicator(ABC):
    """rank and size within the group. capturable: its device collectives may stand in a captured graph."""

    rank: int
    size: int
    capturable: bool = False

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the group; may be x itself, written in place."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The ranks' parts, in rank order, along dim."""

    @abstractmethod
    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Rank source's x, written in place."""

    @abstractmethod
    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        """A group of some ranks of this one. ranks: in this group, in the order that they have in the new one;
        every member calls with the same. role: what it is for, such as "tensor", for logs. options: of the
        library underneath; what is unknown is ignored."""

    @abstractmethod
    def agree(self, values: Sequence[int]) -> Sequence[int]:
        """On the host: the elementwise maximum over the group."""

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
