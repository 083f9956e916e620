"""Launches that a compiler of torch.compile compiles ahead of time, one program for each shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tessera.platform.device import Device, Tensor
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Buffers, Launch, LaunchKey


class Program(NamedTuple):
    """A compiled forward, and the tensors that it reads and writes: weights, caches, plans and inputs of a launch."""

    call: Callable[..., Any]
    inputs: Sequence[Tensor]


class CompiledGraphs(GraphRunner):
    """`CompiledGraphs(torch, device, "mychip")`: for devices whose programs have fixed shapes. The forward of each key
    is traced into ATen ops, without computing anything, and compiled with torch.compile and the backend of that name
    while the engine warms up. Collectives must be functional ones (FunctionalCommunicator).

    A program takes all tensors as inputs and has nothing else of Python, so a replay checks no guards and compiles
    nothing: core keeps the addresses and shapes."""

    separate_planes = True

    def __init__(self, torch: Any, device: Device, backend: str) -> None:
        self.torch, self.device, self.backend = torch, device, backend

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Program:
        traced, inputs = _traced(lambda: forward(launch))
        compiled = self.torch.compile(
            traced, backend=self.backend, fullgraph=True, dynamic=False, options={"guard_filter_fn": _no_guards}
        )
        compiled(*inputs)
        self.device.synchronize()
        return Program(compiled, inputs)

    def replay(self, executable: Program, launch: Launch) -> Any:
        return executable.call(*executable.inputs)


def _traced(call: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """The ops of a call as a torch.fx.GraphModule of the tensors that it uses, and these tensors."""
    make_fx = import_module("torch.fx.experimental.proxy_tensor").make_fx
    module = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)()
    graph = module.graph
    used = [node for node in graph.nodes if node.op == "get_attr"]
    first = next(node for node in graph.nodes if node.op != "get_attr")
    placed: dict[int, Any] = {}
    inputs: list[Tensor] = []
    for node in used:
        tensor = getattr(module, node.target)
        if id(tensor) not in placed:
            with graph.inserting_before(first):
                placed[id(tensor)] = graph.placeholder(f"input_{len(inputs)}")
            inputs.append(tensor)
        node.replace_all_uses_with(placed[id(tensor)])
        graph.erase_node(node)
    module.recompile()
    return module, inputs


def _no_guards(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)
