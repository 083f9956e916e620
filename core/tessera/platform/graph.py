"""Capture and replay of launches, and ready-made classes for graphs of torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.platform.attention import AttentionLayer, Caches, Mixer
from tessera.platform.device import Device, Tensor
from tessera.platform.launch import ALL_POSITIONS, Buffers, Launch, LaunchKey, Plan
from tessera.platform.shapes import ShapePolicy, pieces_key


class GraphRunner(ABC):
    """Captures the forward of a launch key and replays it. It pads nothing and receives the actual counts with each
    launch. A launch for which it has no executable runs eagerly. separate_planes: whether each plane of the caches must
    be a tensor of its own, which shares memory with no other, as for compilers that refuse to write inputs which do."""

    separate_planes = False

    def captures_mixers(self, key: LaunchKey) -> bool:
        """Whether attention, and other mixers, are part of what it captures of launches with this key, so that their
        plans must keep their addresses. Default: they are."""
        return True

    def split(self, mixer: Mixer) -> Mixer:
        """The mixer as the model calls it: a runner that captures what lies between mixers notices here where one
        begins. Called once per layer, when the model is built. Default: the mixer itself."""
        return mixer

    def keys(self, shapes: ShapePolicy, rows: int) -> Sequence[LaunchKey]:
        """The keys that warm-up captures, without bits. Called once, before everything else. rows: the most tokens that
        decode rows can have in a step, drafts included. Default: all keys of a bounded policy."""
        return shapes.keys()

    def encoder_keys(self, shapes: ShapePolicy, tokens: int) -> Sequence[LaunchKey]:
        """As keys(), for a model without a cache, each of whose steps computes whole texts. tokens: the most that a
        step can have. Default: none, so that its launches run eagerly."""
        return ()

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

    def invalidate(self) -> None:
        """Discards all captured graphs, because addresses or shapes have changed. Default: nothing."""


class Eager(GraphRunner):
    """No capture: the executable is the forward itself, and the plan of each launch is made for it alone."""

    def captures_mixers(self, key: LaunchKey) -> bool:
        return False

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        return forward

    def replay(self, executable: Any, launch: Launch) -> Any:
        return executable(launch)


def graph_class(torch: Any, kind: str) -> Any:
    """MYCHIPGraph of torch.mychip; None if this torch has none for that kind of device."""
    return getattr(getattr(torch, kind, None), f"{kind.upper()}Graph", None)


class DeviceGraph:
    """`TorchGraphs(torch, device, lambda pool: DeviceGraph(torch, "mychip", pool=pool))`: torch.mychip.MYCHIPGraph of
    torch's module of a device, which torch.mychip.graph captures on a stream of its own. For a torch older than 2.13,
    and for devices without torch.accelerator.Graph. options: of torch.mychip.graph, beside the graph."""

    def __init__(self, torch: Any, kind: str, **options: Any) -> None:
        self.graph = graph_class(torch, kind)()
        self.capture = getattr(torch, kind).graph(self.graph, **options)

    def __enter__(self) -> None:
        self.capture.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.capture.__exit__(*raised)

    def replay(self) -> None:
        """Launches again what was captured."""
        self.graph.replay()

    def pool(self) -> Any:
        """The memory pool, for the next graph."""
        return self.graph.pool()


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


class _Capturing:
    """A forward that is being captured in pieces. calls: what a replay does, in order; each is called with the
    launch."""

    def __init__(self, launch: Launch, runner: PiecewiseGraphs) -> None:
        self.launch, self.runner = launch, runner
        self.calls: list[Callable[[Launch], Any]] = []
        self.graphs: list[Any] = []

    def begin(self) -> None:
        graph = self.runner.make(self.runner.pool)
        graph.__enter__()
        self.graphs.append(graph)

    def end(self) -> None:
        graph = self.graphs[-1]
        graph.__exit__(None, None, None)
        self.runner.pool = graph.pool()
        self.calls.append(lambda _: graph.replay())

    def eagerly(self, call: Callable[[Plan], Tensor | None], plan: Plan) -> Tensor | None:
        """Runs a call between two pieces. A replay repeats it with the plan of its own launch, and copies the result to
        where the next piece reads it."""
        layer = next(layer for layer, one in enumerate(self.launch.plans) if one is plan)
        self.end()
        result = call(plan)

        def again(launch: Launch) -> None:
            found = call(launch.plans[layer])
            if result is not None:
                result.copy_(found)

        self.calls.append(again)
        self.begin()
        return result


class PiecewiseGraphs(TorchGraphs):
    """As TorchGraphs, but attention and other mixers are not captured: what lies between them is, in one graph each,
    and they run eagerly in between, with the plan of each launch. For kernels that cannot be captured, and for prompts,
    whose attention differs from launch to launch."""

    _capturing: _Capturing | None = None

    def captures_mixers(self, key: LaunchKey) -> bool:
        return False

    def split(self, mixer: Mixer) -> Mixer:
        return _SplitAttention(self, mixer) if isinstance(mixer, AttentionLayer) else _SplitMixer(self, mixer)

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        forward(launch)
        self.device.synchronize()
        self._capturing = capturing = _Capturing(launch, self)
        try:
            capturing.begin()
            result = forward(launch)
            capturing.end()
        finally:
            self._capturing = None
        return _Captured(capturing, result)

    def replay(self, executable: Any, launch: Launch) -> Any:
        for call in executable.graph.calls:
            call(launch)
        return executable.result

    def eagerly(self, call: Callable[[Plan], Tensor | None], plan: Plan) -> Any:
        """Calls a mixer, outside of what is captured."""
        return call(plan) if self._capturing is None else self._capturing.eagerly(call, plan)


class FullAndPiecewiseGraphs(PiecewiseGraphs):
    """Launches that decode, drafts included, are captured whole, and those with prompts in pieces. For a policy with
    BucketedShapes.mixed_tokens, whose launches with prompts have padded tokens and exact rows: what lies between mixers
    knows of no rows, so a number of tokens has one executable, of pieces_key(). It computes the states of all tokens,
    and those that become logits are selected behind it. (vLLM's FULL_AND_PIECEWISE.)"""

    def captures_mixers(self, key: LaunchKey) -> bool:
        return key.kind in ("decode", "verify")

    def key_of(self, key: LaunchKey) -> LaunchKey:
        """A launch that wants the states of all tokens has no executable: what it asks for may be the host's work."""
        whole = self.captures_mixers(key) or ALL_POSITIONS in key.bits
        return key if whole else pieces_key(key.tokens, key.bits)

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        capture = TorchGraphs.capture if self.captures_mixers(key) else PiecewiseGraphs.capture
        return capture(self, key, forward, launch, buffers)

    def replay(self, executable: Any, launch: Launch) -> Any:
        if self.captures_mixers(launch.key):
            return TorchGraphs.replay(self, executable, launch)
        result = PiecewiseGraphs.replay(self, executable, launch)
        # A stage before the last one returns several tensors, and the next one goes on with all tokens.
        return result if isinstance(result, tuple) else launch.select_logits(result)


class _SplitMixer(Mixer):
    def __init__(self, graphs: PiecewiseGraphs, mixer: Mixer) -> None:
        self.graphs, self.mixer = graphs, mixer

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        return self.graphs.eagerly(lambda eager: self.mixer.fused(x, positions, caches, eager), plan)


class _SplitAttention(AttentionLayer):
    def __init__(self, graphs: PiecewiseGraphs, layer: AttentionLayer) -> None:
        self.graphs, self.layer = graphs, layer

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Plan) -> Tensor:
        return self.graphs.eagerly(lambda eager: self.layer.fused(x, positions, caches, eager), plan)

    def heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer.heads(x, positions)

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Plan) -> None:
        self.graphs.eagerly(lambda eager: self.layer.write(k, v, caches, eager), plan)

    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "no model asks for the log-sum-exp"
        return self.graphs.eagerly(lambda eager: self.layer.attend(q, caches, eager, out), plan)


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
