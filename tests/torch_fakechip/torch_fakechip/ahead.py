"""A compiler of the device for torch.compile, as vendors register theirs: programs have fixed shapes, write their
inputs in place, and are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from torch_fakechip.compiled import NAME

compiled: list[str] = []
"""What was compiled since a test cleared it: the shapes of each program's inputs."""


class Program:
    """What a graph was compiled to. It takes tensors of the shapes that it was compiled for, and no others."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        if any(not isinstance(size, int) for one in inputs for size in one.shape):
            raise TypeError("a program has fixed shapes; this one was traced with others")
        self.graph, self.takes = graph, [_kind(one) for one in inputs]
        if any(not takes.startswith(NAME) for takes in self.takes):
            raise TypeError(f"a program takes tensors of {NAME} alone: {self.takes}")
        compiled.append(" ".join(self.takes))

    def __call__(self, *inputs: torch.Tensor) -> Any:
        for number, (one, takes) in enumerate(zip(inputs, self.takes, strict=True)):
            if _kind(one) != takes:
                raise TypeError(f"input {number} of a program is {_kind(one)}; it was compiled for {takes}")
        return self.graph(*inputs)


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.device.type}:{tensor.dtype}{list(tensor.shape)}"


def backend(check: Callable[[torch.fx.GraphModule], None] = lambda graph: None) -> Callable[..., Any]:
    """For torch.compile. check: raises for a graph that the vendor's compiler refuses."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        check(graph)
        return make_boxed_func(Program(graph, inputs))

    made: Callable[..., Any] = aot_autograd(fw_compiler=compile_graph, keep_inference_input_mutations=True)
    return made
