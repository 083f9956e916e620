"""Platforms whose memory does not change while a test looks at it, and one that keeps weights in a form of its own."""

from __future__ import annotations

from typing import Any

import torch

from tessera.platform import Device, HostDevice, Kernel, LinearSpec, MemoryFigures, OpSet, Packed, replace
from tessera_cpu.ops import Linear
from tessera_cpu.platform import CpuPlatform

TOTAL = 600 << 20


class HostMemory(CpuPlatform):
    """Memory of the host, of which a share is taken."""

    name = "host-memory"

    def open(self, index: int) -> Device:
        return HostDevice(torch, MemoryFigures(TOTAL, TOTAL // 2, host=True), "a host")


class OwnMemory(CpuPlatform):
    """Memory of a device's own, of which all that is granted is taken."""

    name = "own-memory"

    def open(self, index: int) -> Device:
        return HostDevice(torch, MemoryFigures(TOTAL, TOTAL), "a device")


class Shrinking(HostDevice):
    """Of whose memory a library takes a part when it is first used."""

    def memory(self) -> MemoryFigures:
        return MemoryFigures(TOTAL, TOTAL // 2 - SharedMemory.taken)


class SharedMemory(CpuPlatform):
    """taken: bytes that a library holds, beside core's."""

    name = "shared-memory"
    taken = 0

    def open(self, index: int) -> Device:
        return Shrinking(torch, MemoryFigures(0, 0), "a device")


class Rounded(Linear):
    """Keeps a weight's rows up to the next multiple of 64; takes real memory only, as a library that packs does."""

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        weight = raw["weight"]
        assert weight.device.type == "cpu"
        packed = weight.new_zeros(self._rows(spec), spec.k)
        packed[: spec.n] = weight
        return {**raw, "weight": packed}

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        width = torch.finfo(getattr(torch, spec.dtype)).bits // 8
        return (self._rows(spec) * spec.k + (spec.n if spec.bias else 0)) * width

    def bind(self, spec: LinearSpec, ops: Any, device: Device) -> Any:
        def linear(x: torch.Tensor, weight: Packed, *, out: torch.Tensor | None = None) -> torch.Tensor:
            result = torch.nn.functional.linear(x, weight["weight"][: spec.n], weight.get("bias"))
            return result if out is None else out.copy_(result)

        return linear

    def _rows(self, spec: LinearSpec) -> int:
        return -(-spec.n // 64) * 64


class Packing(HostMemory):
    name = "packing"

    def ops(self, reference: OpSet) -> OpSet:
        kernel: Kernel[LinearSpec] = Rounded()
        return replace(super().ops(reference), linear=kernel)
