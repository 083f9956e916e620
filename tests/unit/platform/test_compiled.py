"""Launches as programs of torch.compile, by a backend that computes each on the host."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

from tessera.platform import CompiledGraphs, HostDevice, LaunchKey, MemoryFigures
from tessera.platform.compiled import _traced

DEVICE = HostDevice(torch, MemoryFigures(0, 0, host=True))
KEY = LaunchKey("decode", 1, 1, 1, 1)
compiled: list[list[str]] = []


def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    compiled.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
    return make_boxed_func(graph)


register_backend(aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True), "test_host")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    compiled.clear()
    with torch.inference_mode():
        yield


def test_a_program_reads_and_writes_the_tensors_of_its_launch() -> None:
    weight, x, cache = torch.tensor([2.0]), torch.tensor([3.0]), torch.zeros(2)
    ran = []

    def forward(launch: Any) -> torch.Tensor:
        ran.append(launch)
        cache[0:1] = x * weight
        return cache + launch.added

    launch: Any = SimpleNamespace(added=torch.tensor([10.0]))
    graphs = CompiledGraphs(torch, DEVICE, "test_host")
    program = graphs.capture(KEY, forward, launch, None)  # type: ignore[arg-type]  # no buffers are asked for
    assert cache.tolist() == [6.0, 0.0]
    x.fill_(5.0)
    launch.added.fill_(20.0)
    assert graphs.replay(program, launch).tolist() == [30.0, 20.0]
    assert cache.tolist() == [10.0, 0.0]
    assert (len(ran), len(compiled)) == (1, 1)


def test_nothing_is_computed_while_a_forward_is_traced() -> None:
    cache, x = torch.zeros(2), torch.ones(2)
    module, inputs = _traced(lambda: cache.add_(x * 3) * x)
    assert cache.tolist() == [0.0, 0.0]
    assert {id(one) for one in inputs} == {id(cache), id(x)}  # each once, though they are used twice
    assert len(inputs) == 2
    assert module(*inputs).tolist() == [3.0, 3.0]


def test_a_replay_compiles_nothing_whatever_has_changed_around_it() -> None:
    x = torch.tensor([3.0])
    graphs = CompiledGraphs(torch, DEVICE, "test_host")
    launch: Any = SimpleNamespace()
    programs = [graphs.capture(KEY, lambda _, n=n: x * n, launch, None) for n in (2, 3)]  # type: ignore[arg-type]
    with Watch():
        assert [graphs.replay(program, launch).item() for program in programs] == [6.0, 9.0]
    assert len(compiled) == 2


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_planes_are_separate() -> None:
    assert CompiledGraphs(torch, DEVICE, "test_host").separate_planes
