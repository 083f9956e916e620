"""Bronze: what the manifest, the probe and an opened device say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera.platform.attention import ITEMSIZE
from tessera.reference.dtypes import torch_dtype
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.target import Target


def device_cases(target: Target) -> Iterator[Case]:
    for name, check in (
        ("manifest", _manifest), ("capabilities", _capabilities), ("memory", _memory), ("to_host", _to_host),
        ("arena", _arena),
    ):  # fmt: skip
        yield Case(f"device/{name}", "bronze", name, partial(check, target))


def _manifest(target: Target) -> Verdict:
    if target.selected is None:
        return absent("it was given by its dotted path, which asks no probe")
    name, probe = target.selected.name, target.selected.probe
    _demand(target.platform.name == name, f"the manifest calls it {name!r}, the platform {target.platform.name!r}")
    _demand(probe.reason.strip() != "", "its probe gives no reason")
    _demand(probe.score <= 100, f"its probe has the score {probe.score}; 100 is the most")
    for device in probe.devices:
        _demand(device.memory >= 0, f"its probe says that {device.name} has {device.memory} bytes")
    return PASSED


def _capabilities(target: Target) -> Verdict:
    said = target.platform.capabilities
    _demand(bool(said.dtypes), "it claims no dtype, so no model can run")
    for dtype in said.dtypes:
        _demand(dtype in ITEMSIZE and torch_dtype(dtype).is_floating_point, f"it claims {dtype!r}, which is no dtype")
    _demand(said.index_dtype in ("int32", "int64"), f"its index_dtype is {said.index_dtype!r}; int32 or int64")
    return PASSED


def _memory(target: Target) -> Verdict:
    figures = target.device.memory()
    _demand(figures.total > 0, f"a device has {figures.total} bytes in all")
    _demand(0 <= figures.free <= figures.total, f"{figures.free} bytes are free of {figures.total}")
    return PASSED


def _to_host(target: Target) -> Verdict:
    device = target.device
    numbers = torch.arange(37, dtype=torch.int32)
    future = device.to_host(numbers.to(device.target))
    device.synchronize()
    found = future.result()
    _demand(found.tolist() == numbers.tolist(), "to_host gives other numbers than the device holds")
    return PASSED


def _arena(target: Target) -> Verdict:
    device = target.device
    for tag in ("weights", "kv", "workspace"):
        with device.arena(tag) as arena:
            held = arena.hold(torch.zeros(1000, dtype=torch.uint8, device=device.target))
        _demand(held.shape == (1000,), f"the arena {tag!r} gives another tensor than it was to hold")
        _demand(arena.nbytes == 1000, f"the arena {tag!r} counts {arena.nbytes} bytes of 1000")
    return PASSED


def _demand(holds: Any, text: str) -> None:
    if not holds:
        raise ConformanceError(text)
