"""What the platform makes of sysfs and of torch, both made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tessera.platform import PlatformError
from tessera.platform.probing import NoDeviceError
from tessera_rocm import platform as module
from tessera_rocm.platform import RocmPlatform
from tessera_rocm.topology import Card
from tessera_triton import TARGETS

MI300X = Card("AMD Instinct MI300X", "gfx942", 192 << 30, 304, 64, 64 << 10)
RADEON = Card("AMD GPU gfx1103", "gfx1103", 16 << 30, 12, 32, 64 << 10)
OLD = Card("AMD GPU gfx1030", "gfx1030", 16 << 30, 40, 32, 64 << 10)


class Made(RocmPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_built_for(cuda=None, hip=None, *, available=True, gfx="gfx942:sramecc+:xnack-"):
    devices = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        set_device=lambda index: None,
        get_device_name=lambda index: "AMD Instinct MI300X",
        get_device_properties=lambda index: SimpleNamespace(gcnArchName=gfx),
    )
    return SimpleNamespace(
        __version__="2.13",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=devices,
        device=lambda kind, index: f"{kind}:{index}",
    )


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        (torch_built_for(cuda="13.0"), "^platform 'rocm' needs a ROCm build of torch, and torch 2.13 is none"),
        (torch_built_for(), "^platform 'rocm' needs a ROCm build of torch, and torch 2.13 is none"),
        (
            torch_built_for(hip="7.0", available=False),
            "^torch 2.13 finds no AMD GPU; check with rocminfo that ROCm 7.0",
        ),
    ],
)
def test_a_torch_that_cannot_use_the_card_is_refused_in_one_line(torch, message):
    with pytest.raises(PlatformError, match=message) as refused:
        Made(torch).open(0)
    assert "\n" not in str(refused.value)


def test_a_device_is_opened_under_torchs_name_for_it():
    device = Made(torch_built_for(hip="7.0")).open(0)
    assert (device.target, device.name) == ("cuda:0", "AMD Instinct MI300X")


def test_facts_are_those_of_the_opened_card_among_several(monkeypatch):
    monkeypatch.setattr(module, "cards", lambda: [RADEON, MI300X])
    platform = Made(torch_built_for(hip="7.0"))
    before = platform._facts()
    platform.open(0)
    assert (before.arch, platform._facts()) == ("gfx1103", TARGETS["gfx942"])


def test_facts_follow_an_architecture_that_the_environment_overrides(monkeypatch):
    monkeypatch.setattr(module, "cards", lambda: [OLD])
    platform = Made(torch_built_for(hip="7.0", gfx="gfx1100"))
    assert platform._facts() is None
    platform.open(0)
    assert (platform._facts().arch, platform._facts().processors) == ("gfx1100", 40)


def test_without_a_card_there_are_no_facts(monkeypatch):
    def none():
        raise NoDeviceError("the kernel's driver finds no AMD GPU")

    monkeypatch.setattr(module, "cards", none)
    with pytest.raises(PlatformError, match="^the kernel's driver finds no AMD GPU; the platform 'rocm' needs"):
        RocmPlatform()._facts()


@pytest.mark.parametrize(
    ("version", "captured"), [("2.11.0+rocm7.1", False), ("2.13.0", True), ("2.14.0a0+git12ab", True), ("3.0", True)]
)
def test_collectives_are_captured_where_torch_guards_it(version, captured):
    torch = torch_built_for(hip="7.0")
    torch.__version__ = version
    assert Made(torch)._captures_collectives() is captured


def test_cards_of_two_kinds_are_refused_by_name():
    torch = torch_built_for(hip="7.0")
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(
        name="MI300X" if index == 0 else "MI210",
        gcnArchName="gfx942:sramecc+" if index == 0 else "gfx90a",
        shared_memory_per_block=64 << 10,
    )
    with pytest.raises(
        PlatformError, match=r"^device 0 is MI300X \(gfx942, 64 KiB of LDS\), but device 1 is MI210 \(g"
    ):
        Made(torch)._require_one_kind(1)
