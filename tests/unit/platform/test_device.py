"""What a device says where it cannot do what core's model runner needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.platform import Device, MemoryFigures, PlatformError, Ready, TorchDevice


class OfAnotherLibrary(Device):
    def memory(self) -> MemoryFigures:
        return MemoryFigures(total=1, free=1)

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Any) -> Ready:
        return Ready(tensor)


def test_a_device_without_pinned_memory_says_how_to_open_it() -> None:
    def empty(*_: Any, **options: Any) -> Any:
        raise RuntimeError("Need to provide pin_memory allocator to use pin memory.\nException raised from here")

    torch = SimpleNamespace(device=lambda kind, index: f"{kind}:{index}", empty=empty, uint8="u1")
    with pytest.raises(PlatformError, match=r"chip:1 \(Need to .* memory\.\); .*TorchDevice\(\.\.\., pinned=False\)"):
        TorchDevice(torch, "chip", 1).to_device(np.arange(3), np.empty(3))


def test_a_device_for_a_runner_of_its_own_needs_no_copies_to_it() -> None:
    with pytest.raises(PlatformError, match=r"OfAnotherLibrary has no to_device\(\), .* needs; implement it\.$"):
        OfAnotherLibrary().to_device(np.arange(3))
