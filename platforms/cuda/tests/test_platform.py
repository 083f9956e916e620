"""What the platform makes of the driver and of torch, both made up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tessera.platform import PlatformError
from tessera.platform.probing import NoDeviceError
from tessera_cuda import platform as module
from tessera_cuda.driver import Card
from tessera_cuda.platform import CudaPlatform
from tessera_triton import TARGETS

H100 = Card("NVIDIA H100 80GB HBM3", 90, 80 << 30, 132, 227 << 10)
A100 = Card("NVIDIA A100-SXM4-80GB", 80, 80 << 30, 108, 163 << 10)
TURING = Card("Tesla T4", 75, 15 << 30, 40, 64 << 10)


class Made(CudaPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_built_for(cuda=None, hip=None, *, available=True):
    version = SimpleNamespace(cuda=cuda, hip=hip)
    return SimpleNamespace(__version__="2.13", version=version, cuda=SimpleNamespace(is_available=lambda: available))


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        (torch_built_for(hip="7.0"), "^platform 'cuda' needs a CUDA build of torch, and torch 2.13 is none"),
        (torch_built_for(), "^platform 'cuda' needs a CUDA build of torch, and torch 2.13 is none"),
        (torch_built_for("13.0", available=False), "^torch 2.13 finds no NVIDIA GPU; check with nvidia-smi"),
    ],
)
def test_a_torch_that_cannot_use_the_card_is_refused_in_one_line(torch, message):
    with pytest.raises(PlatformError, match=message) as refused:
        Made(torch).open(0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("card", "name"), [(H100, "sm_90"), (A100, "sm_80")])
def test_the_facts_of_a_card_are_those_that_kernels_are_compiled_for(monkeypatch, card, name):
    monkeypatch.setattr(module, "cards", lambda: [card, TURING])
    assert CudaPlatform()._facts() == TARGETS[name]


def test_a_card_that_is_too_old_has_no_kernels(monkeypatch):
    monkeypatch.setattr(module, "cards", lambda: [TURING])
    assert CudaPlatform()._facts() is None


def test_without_a_driver_there_are_no_facts(monkeypatch):
    def none():
        raise NoDeviceError("the driver finds no card")

    monkeypatch.setattr(module, "cards", none)
    with pytest.raises(PlatformError, match="^the driver finds no card; the platform 'cuda' needs an NVIDIA card"):
        CudaPlatform()._facts()


def test_cards_of_two_kinds_are_refused_by_name(monkeypatch):
    sxm = replace(H100, name="NVIDIA H100 PCIe", processors=114)
    monkeypatch.setattr(module, "cards", lambda: [H100, sxm, A100])
    platform = CudaPlatform()
    platform._require_one_kind(1)
    with pytest.raises(PlatformError) as refused:
        platform._require_one_kind(2)
    assert str(refused.value) == (
        "device 0 is NVIDIA H100 80GB HBM3 (compute capability 9.0, 227 KiB of shared memory), but device 2 is NVIDIA "
        "A100-SXM4-80GB (compute capability 8.0, 163 KiB of shared memory): one engine takes devices of one kind; "
        "choose them with CUDA_VISIBLE_DEVICES."
    )


def test_the_defaults_are_those_of_the_first_card_s_memory(monkeypatch):
    def none():
        raise NoDeviceError("the driver finds no card")

    for found, expected in ((lambda: [H100], 1024), (lambda: [TURING, H100], None), (none, None)):
        monkeypatch.setattr(module, "cards", found)
        default = CudaPlatform().defaults(None).get("scheduler.max_num_seqs")
        assert (default and default.value) == expected
