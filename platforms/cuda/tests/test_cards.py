"""What the driver says of the cards, and what the probe makes of it. The driver is made up."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from tessera.platform.probing import NoDeviceError
from tessera_cuda import driver, probe
from tessera_cuda.driver import Card, cards

H100 = Card("NVIDIA H100 80GB HBM3", 90, 80 << 30, 132, 227 << 10)
TURING = Card("Tesla T4", 75, 15 << 30, 40, 64 << 10)


@dataclass
class Driver:
    """libcuda with these cards. code: what a call of that name returns instead of success."""

    found: list[Card] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)

    def cuInit(self, flags):  # the driver's names
        return self.codes.get("cuInit", 0)

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.found)
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = self.found[device.value].name.encode()[: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, memory, device):
        memory._obj.value = self.found[device.value].memory
        return self.codes.get("cuDeviceTotalMem_v2", 0)

    def cuDeviceGetAttribute(self, value, number, device):
        card = self.found[device.value]
        said = {16: card.processors, 75: card.capability // 10, 76: card.capability % 10, 97: card.shared_bytes}
        value._obj.value = said[number]
        return 0


def test_all_cards_are_told():
    assert cards(Driver([H100, TURING])) == [H100, TURING]


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (Driver(codes={"cuInit": 100}), r"^the driver did not start \(error 100\)$"),
        (Driver(), "^the driver finds no card$"),
        (Driver([H100], {"cuDeviceTotalMem_v2": 999}), "^the driver answers with error 999$"),
    ],
)
def test_a_driver_without_cards_says_why(library, message):
    with pytest.raises(NoDeviceError, match=message):
        cards(library)


def test_no_driver(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libnothing-of-this-name.so.1")
    with pytest.raises(NoDeviceError, match="^libnothing-of-this-name.so.1 is not installed$"):
        cards()
    found = probe.probe()
    assert (found.score, found.reason) == (0, "libnothing-of-this-name.so.1 is not installed")


def test_the_probe_names_card_and_reason(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver([TURING, H100]))
    found = probe.probe()
    assert found.score == 50
    assert found.reason == "Tesla T4, compute capability 7.5, on reference ops: the kernels need 8.0"
    assert [(device.name, device.index, device.memory) for device in found.devices] == [
        (TURING.name, 0, TURING.memory),
        (H100.name, 1, H100.memory),
    ]
    assert probe.why(H100, missing=None) == (100, "NVIDIA H100 80GB HBM3, compute capability 9.0, Triton kernels")
    said = "Triton needs a C compiler, and there is neither gcc nor clang"
    named = "NVIDIA H100 80GB HBM3, compute capability 9.0"
    assert probe.why(H100, missing=said) == (50, f"{named}, on reference ops: {said}")


def test_the_probe_imports_neither_torch_nor_triton():
    program = "import sys; sys.modules.update(torch=None, triton=None); from tessera_cuda import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
