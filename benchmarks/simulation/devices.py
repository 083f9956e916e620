"""Devices as limits: how long a step takes, from what the scheduler has put into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.simulation.models import ModelCost, StepWork

READ_SHARE = 0.8
"""Of the published bandwidth: an assumption. Copies reach about nine tenths on the GPUs that have been measured, and a
step is not all copies."""
PRODUCT_SHARE = 0.5
"""Of the published arithmetic in bfloat16: an assumption, for prompts of hundreds of tokens and more."""
STEP_SECONDS = 0.0005
"""Of a step that do not depend on its tokens, launches and what devices wait for the host: an assumption."""


@dataclass(frozen=True)
class Device:
    """What limits a step."""

    name: str
    # Of its memory, in bytes.
    memory_bytes: float
    # Read in a second.
    bytes_per_second: float
    # Multiplications and additions in a second, dense, in bfloat16.
    flops_per_second: float
    # Where the three are from.
    source: str
    # Of a step, whatever is in it.
    step_seconds: float = STEP_SECONDS
    # Of a step for each row.
    row_seconds: float = 0.0
    # Of bytes_per_second, that a step reaches.
    read_share: float = READ_SHARE
    # Of flops_per_second, that a step reaches.
    product_share: float = PRODUCT_SHARE
    # Steps in flight: two where the host prepares a step while the device computes the one before.
    depth: int = 2

    def seconds(self, model: ModelCost, work: StepWork) -> float:
        """Of a step: reading the weights or multiplying with them, whichever takes longer, the same for the attention,
        and what is fixed."""
        read, multiply = self.bytes_per_second * self.read_share, self.flops_per_second * self.product_share
        products = max(model.weight_bytes / read, model.product_flops(work) / multiply)
        attention = max(model.kv_bytes * work.keys / read, model.attention_flops(work) / multiply)
        return self.step_seconds + self.row_seconds * work.rows + products + attention


PUBLISHED: Mapping[str, Device] = MappingProxyType(
    {
        "h100": Device("h100", 80e9, 3.35e12, 989e12, "NVIDIA H100 SXM, data sheet; half of what it has with sparsity"),
        "h200": Device("h200", 141e9, 4.8e12, 989e12, "NVIDIA H200 SXM, data sheet; half of what it has with sparsity"),
        "mi300x": Device("mi300x", 192e9, 5.3e12, 1307e12, "AMD Instinct MI300X, data sheet"),
        "gaudi3": Device("gaudi3", 128e9, 3.67e12, 1835e12, "Intel Gaudi 3, Hot Chips 2024"),
        "tpu-v6e": Device("tpu-v6e", 32e9, 1.638e12, 918e12, "Google Cloud TPU v6e, documentation"),
    }
)
"""By name, as their vendors publish them."""


def load_device(name: str) -> Device:
    """A published one, or one that `measure` has written to a file. Raises ValueError."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    try:
        return Device(**json.loads(Path(name).read_text(encoding="utf-8"))["device"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        known = ", ".join(PUBLISHED)
        raise ValueError(f"--device {name} is neither one of {known} nor a file of `measure`") from error
