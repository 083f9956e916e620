"""The cards that the driver knows, asked without torch, whose import takes seconds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from tessera.platform.probing import NoDeviceError

LIBRARY = "libcuda.so.1"
# CUdevice_attribute, from the driver API's reference
_PROCESSORS, _MAJOR, _MINOR, _SHARED = 16, 75, 76, 97


@dataclass(frozen=True)
class Card:
    """A GPU, as the driver describes it."""

    # the product's
    name: str
    # compute capability: 90 for 9.0
    capability: int
    # bytes
    memory: int
    # SMs
    processors: int
    # shared memory that one program may use
    shared_bytes: int


def cards(library: Any = None) -> list[Card]:
    """The cards of this machine, in the driver's order. library: the driver's, by default loaded. Raises
    NoDeviceError."""
    if library is None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NoDeviceError(f"{LIBRARY} is not installed") from error
    code = library.cuInit(0)
    if code:
        raise NoDeviceError(f"the driver did not start (error {code})")
    count = ctypes.c_int()
    _check(library.cuDeviceGetCount(ctypes.byref(count)))
    if not count.value:
        raise NoDeviceError("the driver finds no card")
    return [_card(library, index) for index in range(count.value)]


def _card(library: Any, index: int) -> Card:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    _check(library.cuDeviceGet(ctypes.byref(device), index))
    _check(library.cuDeviceGetName(name, len(name), device))
    _check(library.cuDeviceTotalMem_v2(ctypes.byref(memory), device))

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _check(library.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    return Card(
        name.value.decode(errors="replace"),
        10 * attribute(_MAJOR) + attribute(_MINOR),
        memory.value,
        attribute(_PROCESSORS),
        attribute(_SHARED),
    )


def _check(code: int) -> None:
    if code:
        raise NoDeviceError(f"the driver answers with error {code}")
