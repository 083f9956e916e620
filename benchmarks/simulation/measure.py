"""Measures this machine as a Device: steps of a real engine, of different sizes, and the limits that explain them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.gpu.models import Sizes
from benchmarks.simulation.devices import Device
from benchmarks.simulation.models import ModelCost, StepWork
from benchmarks.simulation.timed_engine import timed_engine
from tessera.arrays import Array, int32

ROWS = (1, 4, 16)
"""Requests at once."""
PROMPTS = (20, 150, 600)
"""Tokens of their prompts."""
ANSWER = 8
ROUNDS = 2
"""The first one warms up."""
LAYERS_SHARE = 3
"""The model is measured with all its layers, and with one in so many, so that what is fixed can be told from what its
weights take."""


@dataclass(frozen=True)
class TimedStep:
    model: ModelCost
    work: StepWork
    seconds: float


def timed_steps(sizes: Sizes, platform: str | None, timer: str) -> Iterator[TimedStep]:
    """Steps of an engine with random weights of a shape."""
    model, random, key = ModelCost.from_sizes("measured", sizes), np.random.default_rng(0), 0
    flags = {
        "platform": platform, "max_model_len": 1024, "max_num_seqs": max(ROWS), "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 2**30, "enable_prefix_caching": False,
    }  # fmt: skip
    with timed_engine(sizes, timer, **flags) as engine:
        for round_number in range(ROUNDS):
            for rows in ROWS:
                for prompt in PROMPTS:
                    for _ in range(rows):
                        engine.add(key, int32(random.integers(model.vocab_size, size=prompt - key % 7)), ANSWER)
                        key += 1
                    while engine.has_work:
                        work, seconds, _ = engine.step()
                        if round_number:
                            yield TimedStep(model, work, seconds)


# ---- what explains them ----------------------------------------------------------------------------------------------


def fit(steps: Sequence[TimedStep], name: str) -> Device:
    """The limits with the least squares of errors relative to what they say, so that long and short steps count alike
    and neither side of the truth is preferred. Whether a step is limited by reading or by arithmetic depends on the
    limits, so all of it is found in turns."""
    took = np.array([step.seconds for step in steps])
    reads = np.array([[step.model.weight_bytes, step.model.kv_bytes * step.work.keys] for step in steps])
    flops = np.array([[step.model.product_flops(step.work), step.model.attention_flops(step.work)] for step in steps])
    rows = np.array([step.work.rows for step in steps])
    read, multiply = 1 / 20e9, 1 / 100e9
    fixed, row, said = 0.0, 0.0, took
    for _ in range(30):
        is_read = reads * read >= flops * multiply
        columns = np.stack([np.ones(len(took)), rows, (reads * is_read).sum(1), (flops * ~is_read).sum(1)], axis=1)
        factors = _least_squares(columns / said[:, None], took / said)
        said = np.maximum(columns @ factors, 1e-9)
        fixed, row, read, multiply = factors.tolist()
        read, multiply = max(read, 1e-13), max(multiply, 1e-15)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        name, float(memory), 1 / read, 1 / multiply, machine.describe(), fixed, row, read_share=1.0, product_share=1.0,
        depth=1,
    )  # fmt: skip


def _least_squares(columns: Array, values: Array) -> Array:
    """Factors, none of them negative, with which the columns come closest to the values."""
    factors, used = np.zeros(columns.shape[1]), np.ones(columns.shape[1], bool)
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    while used.any():
        found = np.linalg.lstsq((columns / scale)[:, used], values, rcond=None)[0]
        if (found >= 0).all():
            factors[used] = found
            break
        used[np.flatnonzero(used)[found.argmin()]] = False
    unscaled: Array = factors / scale
    return unscaled


@dataclass(frozen=True)
class Residual:
    """How far the steps of one kind are from what the device says: |predicted / measured - 1|."""

    kind: str
    num_steps: int
    median: float
    # 90 of a hundred are no farther.
    large: float
    # Of the sums of seconds: above 1 where the device says more than was measured.
    total: float


def residuals(steps: Sequence[TimedStep], device: Device) -> list[Residual]:
    found = []
    for kind in ("decode", "prompts"):
        own = [step for step in steps if (step.work.tokens == step.work.rows) == (kind == "decode")]
        if own:
            said = np.array([device.seconds(step.model, step.work) for step in own])
            took = np.array([step.seconds for step in own])
            off = np.abs(said / took - 1)
            found.append(
                Residual(kind, len(own), float(np.median(off)), float(np.percentile(off, 90)), said.sum() / took.sum())
            )
    return found


def measure_device(sizes: Sizes, platform: str | None, timer: str) -> tuple[Device, list[Residual]]:
    """This machine, by a shape and one with fewer layers. platform: None for the one that `tessera serve` chooses."""
    layers = int(sizes["num_hidden_layers"])
    steps = [
        step
        for count in (max(layers // LAYERS_SHARE, 1), layers)
        for step in timed_steps({**sizes, "num_hidden_layers": count}, platform, timer)
    ]
    device = fit(steps, "measured")
    return device, residuals(steps, device)


def write_device(device: Device, off: Sequence[Residual], path: Path) -> None:
    """As load_device() reads it."""
    record = {"device": dataclasses.asdict(device), "residuals": [dataclasses.asdict(one) for one in off]}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
