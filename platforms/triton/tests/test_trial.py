"""Trials of copied keys in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.platform import Device, FullAttentionSpec, LayerSpec, PlatformError
from tessera.platform.artifacts import Artifacts
from tessera.testing.reference import host_device
from tessera_triton import Launcher
from tessera_triton.copying import Copying, chosen_copies
from tessera_triton.facts import INTERPRETED
from tessera_triton.trial import PROGRAM, tried_apart

SPEC = LayerSpec(0, "attention", 2, 1, 16, 0.25, "float16", FullAttentionSpec(1, 16, "float16"))
COPYING = Copying(INTERPRETED, Launcher(), SPEC, (0.36, 1.0), specialize=True)


def said(text: str) -> Sequence[str]:
    return sys.executable, "-c", text


def tried(device: Device, program: Sequence[str] = PROGRAM, seconds: float = 60.0) -> str | None:
    def load(*launch: object) -> None:
        raise AssertionError("this process launches nothing")

    return tried_apart(COPYING, load, device, program=program, seconds=seconds)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    device = host_device()
    device.artifacts = Artifacts(tmp_path, "made")
    return device


def test_a_trial_compares_the_kernels_and_is_made_once(device: Device) -> None:
    assert tried(device) is None
    assert tried(device, said("raise SystemExit(1)")) is None  # what was found is remembered
    other = replace(COPYING, specialize=False)
    assert "did not run" in str(tried_apart(other, lambda *launch: None, device, program=said("raise SystemExit(1)")))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import time; time.sleep(60)", "it hung, or was not done in 0 s"),
        ("import os; os.kill(os.getpid(), 9)", "it ended its process with signal 9"),
        ("print('noise'); print('{\"difference\": \"it gives other numbers\"}')", "it gives other numbers"),
    ],
    ids=("hangs", "dies", "differs"),
)
def test_what_is_wrong_is_remembered(device: Device, text: str, why: str) -> None:
    assert tried(device, said(text), 60.0 if "noise" in text else 0.4) == why
    assert tried(device) == f"{why} (tried at an earlier start)"


def test_a_trial_that_says_nothing_of_the_kernel_is_made_again(device: Device) -> None:
    """As where the device's memory is full."""
    assert "did not run" in str(tried(device, said("raise SystemExit(3)")))
    assert tried(device) is None


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_TRITON_COPIES", raising=False)
    assert chosen_copies() == "plain"
    monkeypatch.setenv("TESSERA_TRITON_COPIES", "specialized")
    assert chosen_copies() == "specialized"
    monkeypatch.setenv("TESSERA_TRITON_COPIES", "yes")
    with pytest.raises(PlatformError, match="TESSERA_TRITON_COPIES is 'yes'; set it to one of off, plain, specialized"):
        chosen_copies()
