"""Copies of blocks within their group, which a step makes before it writes anything."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.arrays import Array, int32
from tessera.kvcache.pool import BlockPool
from tessera.step import BlockCopy


class BlockCopies:
    """The copies that the next step makes. A source is kept until that step has retired. All are made at once, so a
    block may be the source of one and the target of another."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = pools
        self._pairs: list[list[tuple[int, int]]] = [[] for _ in pools]

    def add(self, group: int, source: int, target: int) -> None:
        """source: may be free, but its content must be that of a block that was computed."""
        self._pools[group].copy(source)
        self._pairs[group].append((source, target))

    def origin(self, group: int, block: int) -> int:
        """The block whose content this one will have: its own, or that of the source that is copied into it."""
        return next((source for source, target in self._pairs[group] if target == block), block)

    def withdraw(self, group: int, targets: Array) -> None:
        """Makes no copies into these blocks: nobody holds them any more."""
        pairs = self._pairs[group]
        for pair in [pair for pair in pairs if pair[1] in targets]:
            pairs.remove(pair)
            self._pools[group].copied(pair[0])

    def take(self) -> list[BlockCopy]:
        """The copies of the next step. free() must follow once it has retired."""
        copies = []
        for group, pairs in enumerate(self._pairs):
            if pairs:
                sources, targets = zip(*pairs, strict=True)
                copies.append(BlockCopy(group, int32(sources), int32(targets)))
                pairs.clear()
        return copies

    def free(self, copies: Sequence[BlockCopy]) -> None:
        """Releases the sources of these copies; their step has retired."""
        for copy in copies:
            for source in copy.sources.tolist():
                self._pools[copy.group].copied(source)
