"""Verifying drafts with layers that keep a state: the time of a layer for one row's newest token and k drafts, beside a
decode step's and other ways to do the same, on the CPU platform's kernels in the shapes of benchmarks.states.

Run: python -m benchmarks.drafted_states [--drafts 1 3] [--layers 24] [--rounds 25]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import machine
from tessera.platform import AttentionBackend
from tessera.reference.delta_net import ReferenceGatedDeltaNet
from tessera.reference.mamba2 import ReferenceMamba2
from tessera.reference.short_convolution import ReferenceShortConvolution
from tessera.runner.drafted_states import DraftedStates
from tessera.testing.conformance.state import Kind, Row, StateTrial
from tessera.testing.conformance.target import Target

DTYPE, BEFORE = "bfloat16", 100
KINDS = (
    Kind(
        "gated_delta_net",
        ReferenceGatedDeltaNet,
        heads=16,
        kv_heads=16,
        head_dim=128,
        inputs=4 * 2048 + 2 * 16,
        state=[("conv", (6144, 3)), ("state", (16, 128, 128))],
        options=[("key_dim", 128), ("kernel", 4), ("eps", 1e-6), ("beta_scale", 1.0)],
        weights={"conv": (6144, 4), "a_log": (16,), "dt_bias": (16,), "norm": (128,)},
    ),
    Kind(
        "mamba2",
        ReferenceMamba2,
        heads=48,
        kv_heads=1,
        head_dim=64,
        inputs=2 * 3072 + 256 + 48,
        state=[("conv", (3328, 3)), ("state", (48, 64, 128))],
        options=[("state_dim", 128), ("kernel", 4), ("eps", 1e-5)],
        weights={
            "conv": (3328, 4),
            "conv_bias": (3328,),
            "a_log": (48,),
            "d": (48,),
            "dt_bias": (48,),
            "norm": (3072,),
        },
    ),
    Kind(
        "short_convolution",
        ReferenceShortConvolution,
        heads=1,
        kv_heads=1,
        head_dim=1024,
        inputs=3 * 1024,
        state=[("conv", (1024, 2))],
        options=[("kernel", 3), ("bias", 0)],
        weights={"conv": (1024, 3)},
    ),
)


class Layer:
    """A layer whose first slots hold states."""

    def __init__(self, backend: AttentionBackend, kind: Kind, target: Target) -> None:
        self.trial = StateTrial(DraftedStates(backend), kind, DTYPE, target.bound(), "int32")
        self.backend, self.kind = backend, kind
        self.trial.computed([Row(1, BEFORE, 0)], self.trial.inputs([Row(1, BEFORE, 0)], 0))

    def call(self, row: Row) -> Callable[[], Any]:
        """The layer's own work in a launch of this row."""
        trial = self.trial
        launch = trial.launch([row])
        plan = trial.backend.plan(launch, trial.group, None)
        x = torch.randn(launch.key.tokens, self.kind.inputs).to(torch.bfloat16)
        return partial(trial.layer.fused, x, launch.positions, [trial.planes], plan)

    def copy(self) -> Callable[[], Any]:
        """Copies the state."""
        return partial(self.backend.copy_states, self.trial.planes, torch.tensor([1]), torch.tensor([8]))


def seconds(calls: Sequence[Callable[[], Any]], rounds: int) -> float:
    """Of one call, where they are made in turn: the least of all rounds, as other load only adds time."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        for call in calls:
            call()
        took.append((time.perf_counter() - began) / len(calls))
    return min(took)


def main(arguments: Sequence[str] | None = None) -> None:
    what = __doc__.partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafted_states", description=what)
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 3], choices=range(1, 4))
    parser.add_argument("--layers", type=int, default=24, help="computed in turn, so that states come from memory")
    parser.add_argument("--rounds", type=int, default=25)
    chosen = parser.parse_args(arguments)
    target = Target.named("cpu", 1)
    print(f"{machine.describe()}; microseconds of a layer")
    print("layer               drafts   decode step   copy   chunk   a state behind each")
    for kind in KINDS:
        backend = next(one for one in target.attention_backends if one.supports(kind.spec(DTYPE)) is None)
        layers = [Layer(backend, kind, target) for _ in range(chosen.layers)]
        for drafts in chosen.drafts:
            spare = tuple(range(2, 2 + drafts))
            ways = (
                [layer.call(Row(1, 1, BEFORE)) for layer in layers],
                [layer.copy() for layer in layers],
                [layer.call(Row(1, 1 + drafts, BEFORE)) for layer in layers],
                [layer.call(Row(1, 1 + drafts, BEFORE, spare)) for layer in layers],
            )
            step, copy, chunk, behind = (1e6 * seconds(calls, chosen.rounds) for calls in ways)
            print(f"{kind.name:18} {drafts:7}   {step:11.0f} {copy:6.0f} {chunk:7.0f} {behind:21.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
