"""What kernels need to know of a device, and how they are launched on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class DeviceFacts:
    """What tiles are chosen by."""

    # of Triton's GPUTarget: "cuda", "hip" or "xpu"
    backend: str
    # 80, 90, ...; "gfx942", ...; or the device's name
    arch: int | str
    # threads
    warp_size: int
    # shared memory that one program may use
    shared_bytes: int
    # SMs, compute units or Xe cores
    processors: int
    # whether tensor descriptors become copies by hardware (TMA); elsewhere they become pointers
    descriptors: bool = False
    # the 8-bit float that its matrix instructions take, as torch names it; None if there is none
    fp8: str | None = None

    @property
    def name(self) -> str:
        """As compilers call it."""
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


def _cuda(arch: int, shared_kib: int, processors: int, *, descriptors: bool = False) -> DeviceFacts:
    fp8 = "float8_e4m3fn" if arch >= 89 else None
    return DeviceFacts("cuda", arch, 32, shared_kib << 10, processors, descriptors, fp8)


def _hip(arch: str, warp_size: int, processors: int, fp8: str | None = None, shared_kib: int = 64) -> DeviceFacts:
    return DeviceFacts("hip", arch, warp_size, shared_kib << 10, processors, fp8=fp8)


_DEVICES = (
    _cuda(80, 163, 108),
    _cuda(89, 99, 128),
    _cuda(90, 227, 132, descriptors=True),
    _cuda(100, 227, 148, descriptors=True),
    _cuda(120, 99, 170, descriptors=True),
    _hip("gfx90a", 64, 104),
    _hip("gfx942", 64, 304, "float8_e4m3fnuz"),
    _hip("gfx950", 64, 256, "float8_e4m3fn", 160),
    _hip("gfx1100", 32, 96),
    _hip("gfx1151", 32, 40),
    _hip("gfx1201", 32, 64, "float8_e4m3fn"),
)
TARGETS: Mapping[str, DeviceFacts] = MappingProxyType({facts.name: facts for facts in _DEVICES})
"""The devices that every kernel is compiled for, by name. processors: those of a common card of the kind (A100, RTX
4090, H100, B200, RTX 5090, MI210, MI300X, MI355X, RX 7900 XTX, Ryzen AI Max 395, RX 9070 XT)."""

INTERPRETED = DeviceFacts("cuda", 90, 32, 227 << 10, 4, descriptors=True, fp8="float8_e4m3fn")
"""For Triton's interpreter, on the host."""


class Launcher:
    """Launches a Triton function: `launch(kernel, grid, *arguments, BLOCK=64, num_warps=4)`. All launches of the
    library go through one, so that a subclass can compile for a device that is not there, or count.

    computes: launches have results."""

    computes = True

    def __init__(self) -> None:
        self._launched: set[Any] = set()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self._launched.add(kernel)
        kernel[grid](*arguments, **options)

    @property
    def compilations(self) -> int:
        """How many kernels Triton has compiled for these launches, or loaded from its cache on disk."""
        caches = (caches for kernel in self._launched for caches in kernel.device_caches.values())
        return sum(len(compiled) for compiled, *_ in caches)


def has_compiler(name: str) -> bool:
    """Whether Triton is installed with this backend ("nvidia", "amd", "intel"). Imports nothing, so probes may ask."""
    found = find_spec("triton")
    places = () if found is None else found.submodule_search_locations or ()
    return any((Path(place) / "backends" / name).is_dir() for place in places)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less, at least 1."""
    return 1 << max(number - 1, 0).bit_length()
