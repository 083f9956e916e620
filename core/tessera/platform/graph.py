"""Capture and replay of launches, and a ready-made class for graphs of torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera.platform.device import Device
from tessera.platform.launch import Buffers, Launch, LaunchKey
from tessera.platform.model import ModelFacts
from tessera.platform.shapes import ShapePolicy

if TYPE_CHECKING:
    from tessera.config import EngineConfig


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

    def estimate(self, keys: Sequence[LaunchKey], model: ModelFacts, config: EngineConfig) -> int:
        """Bytes that capturing these keys will take. Called only if the device cannot measure it (Device.peak).
        Default: 0."""
        return 0

    def invalidate(self) -> None:
        """Discards all captured graphs, because addresses or shapes have changed. Default: nothing."""


class Eager(GraphRunner):
    """No capture: the executable is the forward itself."""

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return forward

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)


class _Captured(NamedTuple):
    """result: what the forward returned; each replay writes it again."""

    graph: Any
    result: Any


class TorchGraphs(GraphRunner):
    """`TorchGraphs(torch, device)`: captures launches with torch.accelerator.Graph, which torch has from 2.13 on. make:
    a function that takes the memory pool to share (None for the first graph) and returns a graph of another kind: `with
    graph:` captures what is launched, replay() launches it again, and pool() is its memory pool.

    All graphs share one pool. The largest is captured first, so that the others find room in its memory. The forward
    runs once before it is captured, since kernels are loaded and tuned when they first run."""

    def __init__(self, torch: Any, device: Device, make: Callable[[Any], Any] | None = None) -> None:
        self.device = device
        self.make = make or (lambda pool: _OnStream(torch, device.target, torch.accelerator.Graph(pool=pool)))
        self.pool: Any = None

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        return sorted(shapes.keys(), key=lambda key: key.tokens, reverse=True)

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        forward(launch)
        self.device.synchronize()
        graph = self.make(self.pool)
        with graph:
            result = forward(launch)
        self.pool = graph.pool()
        return _Captured(graph, result)

    def replay(self, executable: Any, launch: Launch) -> Any:
        executable.graph.replay()
        return executable.result

    def invalidate(self) -> None:
        self.pool = None


class _OnStream:
    """A graph captured on a stream of its own, because a device's default stream cannot be captured."""

    def __init__(self, torch: Any, target: Any, graph: Any) -> None:
        self.graph, self.stream = graph, torch.Stream(device=target)
        self.replay, self.pool = graph.replay, graph.pool

    def __enter__(self) -> None:
        self.stream.__enter__()
        self.graph.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.graph.__exit__(*raised)
        self.stream.__exit__(*raised)
