"""What every measurement is given, and how it times calls on the card."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.engine import Timed, model_folder
from benchmarks.gpu.models import LLAMA_8B, QWEN_06B, Sizes, tiny

RUNS = 5
RUN_SECONDS = 0.05
PEAK = 989.0
"""TFLOP/s in bfloat16 that the vendor states for H100 and H200, without sparsity."""


@dataclass(frozen=True)
class Setting:
    """What all measurements of a run share."""

    # Tessera's.
    platform: str
    # Whether this is a rehearsal.
    tiny: bool
    # A folder for files that several measurements use.
    work: Path
    # Of the measurements before, by name.
    figures: Mapping[str, float]

    @property
    def device(self) -> torch.device:
        """torch's, for what runs beside Tessera; the host if torch has no other."""
        found = None if self.tiny else torch.accelerator.current_accelerator()
        return found or torch.device("cpu")

    def scale(self, count: int, rehearsed: int) -> int:
        """A count, or that of a rehearsal."""
        return rehearsed if self.tiny else count

    @property
    def large(self) -> Sizes:
        return tiny(LLAMA_8B) if self.tiny else LLAMA_8B

    @property
    def small(self) -> Sizes:
        return tiny(QWEN_06B) if self.tiny else QWEN_06B

    def folder(self, sizes: Sizes) -> Path:
        return model_folder(self.work / sizes["model_type"], sizes)

    def engine(self, sizes: Sizes, *, rows: int, tokens: int, **flags: Any) -> Timed:
        """rows: requests at once. tokens: of the longest."""
        if self.tiny:
            flags |= {"kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 32}
        return Timed(self.folder(sizes), self.platform, max_num_seqs=rows, max_model_len=tokens, **flags)

    @property
    def copy(self) -> float:
        """Bytes per second that a copy reads and writes on this card. Raises KeyError if that was not measured."""
        return self.figures["copy"] * 1e9

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def seconds(self, call: Callable[[], object], synchronize: Callable[[], None] | None = None) -> float:
        """Seconds of a call: the median of several runs, each of so many calls that starting and awaiting it does not
        count. synchronize: waits for the device that the call uses."""
        wait = synchronize or self.synchronize

        def run(calls: int) -> float:
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            return (time.perf_counter() - start) / calls

        run(1)
        calls = 1 if self.tiny else max(1, min(1000, int(RUN_SECONDS / max(run(2), 1e-6))))
        return statistics.median(run(calls) for _ in range(self.scale(RUNS, 1)))
