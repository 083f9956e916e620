"""Host time of the launches of Triton that an eager step of the 8B shape makes, with and without Triton's binder: one
that decodes 32 rows, one with a chunk of a prompt beside 31 such rows, and what is left of the latter where it is
captured in pieces. Needs no GPU: kernels are not compiled, and launches end where the driver would begin. Products,
copies and launches of graphs are torch's and are not timed.

Run: python -m benchmarks.gpu.launches
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks import machine
from tessera.ops import REFERENCE
from tessera.platform.collectives import Alone
from tessera.platform.ops import BoundOps, replace
from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera.testing.reference import host_device
from tessera_triton import TARGETS, Launcher, TritonAttention, kernels
from tessera_triton.direct import DirectLauncher
from tessera_triton.served import served
from tools.triton_launches import Inputs

FACTS = TARGETS["sm_90"]
LAYERS, ROWS, CONTEXT, CHUNK, ROUNDS = 32, 32, 500, 97, 15
DECODE = ((1, CONTEXT),) * ROWS
MIXED = (*DECODE[1:], (CHUNK, CONTEXT))
"""Tokens to compute and in the cache, of each row."""


@dataclass(frozen=True)
class Launch:
    """What a launcher is called with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def by(self, launcher: Launcher) -> None:
        launcher(self.kernel, self.grid, *self.arguments, **self.options)


@dataclass
class Noting(Launcher):
    """Keeps launches instead of making them."""

    computes = False
    # In order.
    launches: list[Launch] = field(default_factory=list)

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.launches.append(Launch(kernel, grid, arguments, options))


class NoDriver:
    """Stands in for a card's driver, and for its device, for which Triton keeps what it compiled."""

    def get_current_device(self) -> NoDriver:
        return self

    def get_current_stream(self, device: NoDriver) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(FACTS.backend, FACTS.arch, FACTS.warp_size)


class NotCompiled(CompiledKernel):  # type: ignore[misc]  # Triton has no types
    """Takes launches. record: gets the grid and the arguments of each, unless it is None."""

    def __init__(self, record: list[Any] | None) -> None:
        self.record, self.name, self.src = record, "", None
        self.function, self.packed_metadata, self._run = 0, (), self._note

    def _init_handles(self) -> None:
        pass

    def _note(self, x: int, y: int, z: int, stream: int, function: int, metadata: Any, *rest: Any) -> None:
        if self.record is not None:
            self.record.append(((x, y, z), rest[3:]))


@contextmanager
def without_driver(record: list[Any] | None = None) -> Iterator[None]:
    """Triton's launches end where the driver would begin. record: as in NotCompiled."""

    device = NoDriver()

    def compile_nothing(kernel: Any, key: Any, *rest: Any) -> NotCompiled:
        compiled = kernel.device_caches[device][0][key] = NotCompiled(record)
        return compiled

    with patch.object(driver, "_active", device), patch.object(JITFunction, "_do_compile", compile_nothing):
        yield


def attention(rows: tuple[tuple[int, int], ...]) -> list[Launch]:
    """Of a layer. rows: as in MIXED."""
    noted = Noting()
    case = AttentionCase(rows, 64, 32, 8, 128, dtype="bfloat16")
    trial = AttentionTrial(TritonAttention(FACTS, noted), case)
    launch, _ = trial.launch(trial.grants)
    noted.launches.clear()
    x = torch.empty(launch.key.tokens, (32 + 2 * 8) * 128, dtype=torch.bfloat16)
    trial.layer.fused(x, launch.positions, trial.caches, launch.plans[0])
    return noted.launches


def between_attention(tokens: int) -> list[Launch]:
    """Two norms and a gate; products are not launched by Triton."""
    noted = Noting()
    table = replace(REFERENCE, **kernels(FACTS, noted))
    ops = BoundOps(table, host_device(), {"tensor": Alone()})
    for name in ("add_norm", "gate", "add_norm"):
        spec = next(place.spec for place in served(FACTS) if place.op == name and not getattr(place.spec, "emit", None))
        ops.bind(name, spec)(*Inputs(tokens, 0, ops, "bfloat16").arguments(table[name], spec))
    return noted.launches


def launches_of_a_layer(rows: tuple[tuple[int, int], ...] = DECODE) -> list[Launch]:
    return [*attention(rows), *between_attention(sum(tokens for tokens, _ in rows))]


def seconds(launcher: Launcher, step: list[Launch]) -> float:
    """Processor time of a step's launches, the best of ROUNDS."""
    for launch in step:
        launch.by(launcher)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for launch in step:
            launch.by(launcher)
        best = min(best, time.thread_time() - began)
    return best


def main() -> None:
    print(machine.describe())
    steps = {
        "decode": launches_of_a_layer() * LAYERS,
        "mixed": launches_of_a_layer(MIXED) * LAYERS,
        "mixed, in pieces": attention(MIXED) * LAYERS,
    }
    with without_driver():
        for turn in range(3):
            for name, step in steps.items():
                for launcher in (Launcher(), DirectLauncher()):
                    took = seconds(launcher, step)
                    print(
                        f"{turn} {name}, {type(launcher).__name__}: {1e3 * took:.2f} ms a step, "
                        f"{1e6 * took / len(step):.1f} us each of {len(step)}"
                    )


if __name__ == "__main__":
    main()
