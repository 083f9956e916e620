"""Capture and replay of launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tessera.platform.launch import Buffers, Launch, LaunchKey, ShapePolicy


class GraphRunner(ABC):
    """Captures the forward of a launch key and replays it. It pads nothing and receives the actual counts with each
    launch. A launch for which it has no executable runs eagerly."""

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        """The keys that warm-up captures, without bits. Called once, before everything else. rows: the most tokens that
        decode rows can have in a step, drafts included. Default: all keys of a bounded policy."""
        return shapes.keys()

    def key_of(self, key: LaunchKey) -> LaunchKey:
        """The captured key whose executable runs launches of this key. Default: the key itself."""
        return key

    @abstractmethod
    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        """Captures forward(launch) and returns the executable. launch: has this key, and tensors at the addresses that
        replays will use."""

    @abstractmethod
    def replay(self, executable: Any, launch: Launch) -> Any:
        """Replays an executable. Returns what forward returned."""

    def after_launch(self, executable: Any, launch: Launch) -> None:
        """Called after each replay. Default: nothing."""

    def estimate(self, keys: Sequence[LaunchKey]) -> int:
        """Bytes that capturing these keys will take. Default: 0."""
        return 0

    def invalidate(self) -> None:
        """Discards all captured graphs, because addresses or shapes have changed. Default: nothing."""


class Eager(GraphRunner):
    """No capture: the executable is the forward itself."""

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return forward

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)
