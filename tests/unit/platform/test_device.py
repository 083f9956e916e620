"""What ready-made devices ask of torch, and say where they cannot do what core's model runner needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.platform import Device, MemoryFigures, ModuleDevice, PlatformError, Ready, TorchDevice, make_current


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


def torch_of_chips(said: list[Any]) -> Any:
    """Torch's module of two devices. said: what was asked of it."""
    chip = SimpleNamespace(
        device_count=lambda: 2,
        set_device=said.append,
        get_device_name=lambda index: f"chip {index}",
        mem_get_info=lambda target: (60, 100),
        memory_allocated=lambda target: 10,
        max_memory_allocated=lambda target: 35,
        reset_peak_memory_stats=lambda target: said.append("reset"),
        synchronize=lambda target: said.append(f"wait for {target}"),
    )
    return SimpleNamespace(chip=chip, device=lambda kind, index: f"{kind}:{index}")


def test_memory_is_what_the_devices_own_module_says() -> None:
    said: list[Any] = []
    device = ModuleDevice(torch_of_chips(said), "chip", 1)
    assert device.memory() == MemoryFigures(total=100, free=60)
    assert device.peak(lambda: said.append("run")) == 25
    assert said == ["reset", "run", "wait for chip:1"]


def test_a_device_is_made_the_current_one_and_named() -> None:
    said: list[Any] = []
    assert make_current(torch_of_chips(said), "chip", 1) == "chip 1"
    device = ModuleDevice.open(torch_of_chips(said), "chip", 0)
    assert (device.target, device.name, said) == ("chip:0", "chip 0", [1, 0])
    with pytest.raises(PlatformError, match=r"^there is no device 2: torch finds 2; lower --tensor-parallel-size"):
        make_current(torch_of_chips(said), "chip", 2)


def test_a_thread_enters_the_device_of_its_process() -> None:
    said: list[Any] = []
    ModuleDevice(torch_of_chips(said), "chip", 1).enter_thread()
    accelerator = SimpleNamespace(set_device_index=lambda target: said.append(f"select {target}"))
    torch = SimpleNamespace(device=lambda kind, index: f"{kind}:{index}", accelerator=accelerator)
    TorchDevice(torch, "chip", 3).enter_thread()
    assert said == [1, "select chip:3"]
