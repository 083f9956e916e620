"""Which layers aiter's attention takes, and what is said where it cannot be used. That the results are right is tested
in tests/gpus/test_providers.py."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera_triton import TARGETS, Launcher

pytest.importorskip("triton")

from tessera_rocm.aiter import UNIFIED, AiterAttention
from tessera_rocm.platform import RocmPlatform
from tessera_triton.providers import Provider

STAND_IN = "tests.platforms.providers.aiter"
CASE = AttentionCase(((1, 1),), head_dim=64, dtype="bfloat16")


def test_the_stand_in_has_the_arguments_of_the_published_function():
    said = json.loads((Path(__file__).parent / "aiter_attention.json").read_text(encoding="utf-8"))["functions"]
    assert said == {name: str(inspect.signature(getattr(import_module(STAND_IN), name))) for name in UNIFIED}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (CASE, None),
        (replace(CASE, softcap=30.0, window=100, sinks=True, dtype="float16", head_dim=256), None),
        (replace(CASE, heads=64, kv_heads=1), None),
        (replace(CASE, heads=65, kv_heads=1), "more than 64 query heads for a head of keys"),
        (replace(CASE, dtype="float32"), "no kernels for float32"),
        (replace(CASE, kv_dtype="int8"), "keys and values in int8"),
        (replace(CASE, kv_dtype="fp8"), "keys and values in float8_e4m3fn"),
        (replace(CASE, head_dim=264), "heads of 264, not a multiple of 8 up to 256"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(case, why):
    backend = AiterAttention(TARGETS["gfx942"])
    backend.provider = Provider(backend.name, STAND_IN, UNIFIED)
    assert backend.supports(case.spec()) == why


class Kept:
    """Buffers of launches that are captured."""

    def __init__(self):
        self.made = {}

    def get(self, name, shape, dtype):
        if name not in self.made:
            self.made[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        return self.made[name]


class Allocated(TorchDispatchMode):
    """Collects the ops that return a tensor of their own."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func.overloadpacket.__name__ != "detach" and "out" not in (kwargs or {}):
            self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_plan_of_a_captured_decode_launch_allocates_nothing():
    case = AttentionCase(((1, 30), (1, 9)), 128, head_dim=16, dtype="bfloat16", padding=2)
    made, kept = AttentionTrial(AiterAttention(TARGETS["gfx942"], Launcher()), case), Kept()
    launch, _ = made.launch(made.grants)
    first = made.backend.plan(launch, made.group, kept)
    with Allocated() as allocated:
        second = made.backend.plan(launch, made.group, kept)
    assert allocated.ops == []
    assert first.of_tokens.data_ptr() == second.of_tokens.data_ptr()
    assert second.of_tokens.tolist() == [0, 1, 2, 3, 4]
    assert second.keyless.flatten().tolist() == [False, False, True, True]


def test_the_platform_prefers_it_and_says_that_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: TARGETS["gfx942"])
    backends = [one for one in RocmPlatform().attention_backends() if one.handles(CASE.spec())]
    assert [(backend.name, backend.supports(CASE.spec())) for backend in backends] == [
        ("aiter", "aiter is not installed"),
        ("triton", None),
        ("triton-encoder", "no encoder attention over attention"),
        ("triton-delta-net", "no gated delta net over attention"),
        ("triton-mamba2", "no mamba2 over attention"),
        ("triton-short-convolution", "no short convolution over attention"),
    ]


def test_a_card_without_kernels_has_no_backends(monkeypatch):
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: None)
    assert RocmPlatform().attention_backends() == ()


def test_of_several_kernels_the_one_in_triton_is_chosen():
    backend = AiterAttention(TARGETS["gfx942"])
    backend.provider = Provider(backend.name, STAND_IN, UNIFIED)
    assert backend._chosen == {}

    def unified_attention(q, k, backend=None):
        """As newer versions have it."""

    newer = AiterAttention(TARGETS["gfx942"])
    newer.provider = SimpleNamespace(function=lambda name: unified_attention)
    assert newer._chosen == {"backend": "triton"}
