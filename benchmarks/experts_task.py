"""Decode of a mixture of experts alone: the task, and how it is timed, in a process of its own:
`python -m benchmarks.experts_task TASK`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass

EXPERTS_SEED = 11
EXPERTS_SECONDS = 3.0


@dataclass(frozen=True)
class ExpertsTask:
    """`batch` tokens through some layers' mixtures, with random weights in bfloat16."""

    hidden: int
    inner: int
    experts: int
    top_k: int
    layers: int
    batch: int
    threads: int

    @property
    def of_expert(self) -> int:
        """Bytes of an expert."""
        return 2 * 3 * self.hidden * self.inner


@dataclass(frozen=True)
class ExpertsFigures:
    # of a step through all layers
    seconds: float
    # experts that the tokens of a step chose, over all layers
    chosen: int


def measured(task: ExpertsTask) -> ExpertsFigures:
    import torch

    from tessera.platform import BoundOps, ExpertsSpec, GateSpec, LinearSpec, MoESpec, RouteSpec
    from tessera.testing import REFERENCE
    from tessera_cpu import native
    from tessera_cpu.platform import CpuPlatform

    library = native.library()
    if library is not None:
        native.use_threads(library, task.threads)
    torch.set_num_threads(task.threads)
    torch.manual_seed(EXPERTS_SEED)
    platform = CpuPlatform()
    ops = BoundOps(platform.ops(REFERENCE), platform.open(0))
    dtype, hidden, inner = "bfloat16", task.hidden, task.inner
    spec = MoESpec(
        LinearSpec(task.experts, hidden, dtype),
        RouteSpec(task.experts, task.top_k),
        ExpertsSpec(
            LinearSpec(2 * inner, hidden, dtype, experts=task.experts),
            GateSpec(inner, dtype),
            LinearSpec(hidden, inner, dtype, experts=task.experts),
            task.top_k,
        ),
    )
    moe, route = ops.bind("moe", spec), ops.bind("route", spec.route)
    router = ops.bind("linear", spec.router)

    def weight(linear: LinearSpec) -> object:
        raw = torch.empty(max(linear.experts, 1), linear.n, linear.k, dtype=torch.bfloat16)
        raw.normal_(std=linear.k**-0.5)
        return ops.prepare("linear", linear, {"weight": raw if linear.experts else raw[0]})

    with torch.inference_mode():
        specs = spec.router, spec.experts.gate_up, spec.experts.down
        layers = [tuple(map(weight, specs)) for _ in range(task.layers)]
        x = torch.randn(task.batch, hidden, dtype=torch.bfloat16)
        chosen = sum(len(route(router(x, first))[1].unique()) for first, _, _ in layers)
        took: list[float] = []
        end = time.perf_counter() + EXPERTS_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            for weights in layers:
                moe(x, *weights)
            took.append(time.perf_counter() - start)
    return ExpertsFigures(statistics.median(took), chosen)


if __name__ == "__main__":
    print(json.dumps(asdict(measured(ExpertsTask(**json.loads(sys.argv[1]))))))
