"""What the platform makes of torch, which is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tessera.platform import MemoryFigures, PlatformError
from tessera_triton import DeviceFacts
from tessera_xpu.device import XpuDevice
from tessera_xpu.platform import XpuPlatform

GIB = 1 << 30
B580 = {
    "name": "Intel(R) Arc(TM) B580 Graphics", "total_memory": 12 * GIB, "sub_group_sizes": [16, 32],
    "local_mem_size": 128 << 10, "gpu_subslice_count": 20,
}  # fmt: skip


class Made(XpuPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with(*, xpu="20260100", available=True, free=None, reserved=0, **properties):
    """free: bytes of the device's own memory; None if the driver does not say."""

    def get_memory_info(target):
        if free is None:
            raise RuntimeError("The device doesn't support querying the available free memory.")
        return free, 12 * GIB

    devices = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        set_device=lambda index: None,
        get_device_name=lambda index: "Arc",
        get_device_properties=lambda index=0: SimpleNamespace(**B580 | properties),
    )
    return SimpleNamespace(
        __version__="2.13",
        version=SimpleNamespace(xpu=xpu),
        xpu=devices,
        device=lambda kind, index: f"{kind}:{index}",
        accelerator=SimpleNamespace(get_memory_info=get_memory_info, memory_reserved=lambda target: reserved),
    )


@pytest.fixture
def host(tmp_path):
    """A host with 5 GiB available."""
    (tmp_path / "proc").mkdir()
    text = f"MemTotal: {32 << 20} kB\nMemAvailable: {5 << 20} kB\n"
    (tmp_path / "proc/meminfo").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        (torch_with(xpu=None), "^platform 'xpu' needs an XPU build of torch, and torch 2.13 is none"),
        (torch_with(available=False), "^torch 2.13 finds no Intel GPU; check that Intel's compute runtime"),
    ],
)
def test_a_torch_that_cannot_use_the_card_is_refused_in_one_line(torch, message):
    with pytest.raises(PlatformError, match=message) as refused:
        Made(torch).open(0)
    assert "\n" not in str(refused.value)
    with pytest.raises(PlatformError, match=message):
        Made(torch)._facts()


def test_a_card_with_memory_of_its_own_has_what_torch_says():
    device = Made(torch_with(free=9 * GIB, is_integrated_gpu=False)).open(0)
    assert (device.target, device.name) == ("xpu:0", "Arc")
    assert device.memory() == MemoryFigures(total=12 * GIB, free=9 * GIB)


def test_an_integrated_card_shares_the_hosts_memory_and_its_name_says_so(host):
    torch = torch_with(free=9 * GIB, is_integrated_gpu=True)
    assert Made(torch).open(0).name == "Arc, memory shared with the host"
    device = XpuDevice(torch, 0, host)
    assert device.memory() == MemoryFigures(total=12 * GIB, free=5 * GIB, host=True)
    assert device.peak(lambda: pytest.fail("ran")) is None


def test_one_process_gets_no_more_of_the_hosts_memory_than_the_driver_gives(host):
    device = XpuDevice(torch_with(reserved=10 * GIB, is_integrated_gpu=True), 0, host)
    assert device.memory() == MemoryFigures(total=12 * GIB, free=2 * GIB, host=True)


def test_a_card_whose_driver_does_not_say_what_is_free_has_what_this_process_left():
    device = Made(torch_with(reserved=2 * GIB, is_integrated_gpu=False)).open(0)
    assert device.memory() == MemoryFigures(total=12 * GIB, free=10 * GIB)


@pytest.mark.parametrize(("free", "integrated"), [(None, True), (GIB, False)])
def test_an_older_torch_knows_integrated_cards_by_what_it_cannot_ask(free, integrated):
    assert XpuDevice(torch_with(free=free), 0).integrated is integrated


@pytest.mark.parametrize(
    ("said", "warp_size", "shared_bytes"),
    [
        ({}, 32, 128 << 10),
        ({"sub_group_sizes": [8, 16], "local_mem_size": 64 << 10}, 16, 64 << 10),
        ({"local_mem_size": 256 << 10}, 32, 128 << 10),
    ],
)
def test_facts_are_what_torch_says_and_no_more_than_is_safe(said, warp_size, shared_bytes):
    assert Made(torch_with(**said))._facts() == DeviceFacts("xpu", B580["name"], warp_size, shared_bytes, 20)


def test_facts_are_named_as_the_device_is():
    assert Made(torch_with())._facts().name == "Intel(R) Arc(TM) B580 Graphics"
