"""Which layers aiter's attention takes, and what is said where it cannot be used. That the results are right is tested
in tests/gpus/test_providers.py."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from tessera.testing.attention import AttentionCase
from tessera_triton import TARGETS

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


def test_the_platform_prefers_it_and_says_that_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: TARGETS["gfx942"])
    backends = RocmPlatform().attention_backends()
    assert [(backend.name, backend.supports(CASE.spec())) for backend in backends] == [
        ("aiter", "aiter is not installed"),
        ("triton", None),
    ]


def test_a_card_without_kernels_has_no_backends(monkeypatch):
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: None)
    assert RocmPlatform().attention_backends() == ()
