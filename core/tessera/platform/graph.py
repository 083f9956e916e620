"""Capture and replay of launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tessera.platform.launch import Buffers, Launch, LaunchKey, ShapePolicy


class GraphRunner(ABC):
    """Captures the forward of a launch key and replays it. It pads nothing and receives the true counts with each
    launch. A launch that none of its executables is for runs as it comes."""

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        """What warm-up captures, without bits; asked once, first. rows: most of a step. Default: the keys of a bounded
        policy."""
        return shapes.keys()

    def key_of(self, key: LaunchKey) -> LaunchKey:
        """The captured key whose executable is for launches of this one. Default: itself."""
        return key

    @abstractmethod
    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        """launch: one of this key, its tensors those that replays will use. Returns the executable."""

    @abstractmethod
    def replay(self, executable: Any, launch: Launch) -> Any:
        """What forward returned."""

    def after_launch(self, executable: Any, launch: Launch) -> None:
        """Default: nothing."""

    def estimate(self, keys: Sequence[LaunchKey]) -> int:
        """Bytes the captures of these keys will take. Default: 0."""
        return 0

    def invalidate(self) -> None:
        """Addresses or shapes changed: captured graphs are void. Default: nothing."""


class Eager(GraphRunner):
    """No capture: the executable is the forward itself."""

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return forward

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)
