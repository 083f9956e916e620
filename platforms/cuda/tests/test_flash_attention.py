"""Which layers FlashAttention takes, what it is called with, and what is said where it cannot be used. That the
results are right is tested in tests/gpus/test_providers.py."""

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

from tessera_cuda.flash_attention import FLASH_ATTENTION_2, FLASH_ATTENTION_3, FlashAttention2, FlashAttention3
from tessera_cuda.platform import CudaPlatform
from tessera_triton.environment import PROVIDERS
from tessera_triton.providers import Provider

STAND_INS = "tests.platforms.providers"
MISSING = f"{STAND_INS}.no_such_module"
CASE = AttentionCase(((1, 1),), head_dim=64, dtype="bfloat16")
PACKAGES = [
    ("flash_attn.json", "flash_attn", FLASH_ATTENTION_2),
    ("flash_attn_3.json", "flash_attn_interface", FLASH_ATTENTION_3),
]


def recorded(file):
    return json.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))["functions"]


@pytest.mark.parametrize(("file", "module", "needs"), PACKAGES)
def test_the_stand_ins_have_the_arguments_of_the_published_functions(file, module, needs):
    stand_in = import_module(f"{STAND_INS}.{module}")
    assert recorded(file) == {name: str(inspect.signature(getattr(stand_in, name))) for name in needs}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (CASE, None),
        (replace(CASE, softcap=30.0, window=100, dtype="float16", head_dim=256, heads=64, kv_heads=1), None),
        (replace(CASE, sinks=True), "no sinks"),
        (replace(CASE, dtype="float32"), "no kernels for float32"),
        (replace(CASE, kv_dtype="int8"), "keys and values in int8"),
        (replace(CASE, kv_dtype="fp8"), "keys and values in float8_e4m3fn"),
        (replace(CASE, kv_dtype="float16"), "keys and values in float16"),
        (replace(CASE, head_dim=12), "heads of 12, not a multiple of 8 up to 256"),
        (replace(CASE, head_dim=264), "heads of 264, not a multiple of 8 up to 256"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(case, why):
    backend = FlashAttention2(TARGETS["sm_80"])
    backend.provider = Provider(backend.name, f"{STAND_INS}.flash_attn", FLASH_ATTENTION_2)
    assert backend.supports(case.spec()) == why


def test_version_3_is_for_hopper_and_for_no_windows():
    for name, case, why in (
        ("sm_90", CASE, None),
        ("sm_90", replace(CASE, window=9), "its tiles of keys may begin before the window, in blocks that were freed"),
        ("sm_100", CASE, "made for compute capability 9.0, and this is sm_100"),
    ):
        backend = FlashAttention3(TARGETS[name])
        backend.provider = Provider(backend.name, f"{STAND_INS}.flash_attn_interface", FLASH_ATTENTION_3)
        assert backend.supports(case.spec()) == why


def test_the_platform_prefers_it_and_says_that_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(CudaPlatform, "_compiled_facts", lambda self: TARGETS["sm_90"])
    backends = [one for one in CudaPlatform().attention_backends() if one.handles(CASE.spec())]
    assert [(backend.name, backend.supports(CASE.spec())) for backend in backends] == [
        ("flash_attention_3", "flash_attn_interface is not installed"),
        ("flash_attention_2", "flash_attn is not installed"),
        ("flashinfer", "flashinfer is not installed"),
        ("triton", None),
        ("triton-encoder", "no encoder attention over attention"),
        ("triton-delta-net", "no gated delta net over attention"),
        ("triton-mamba2", "no mamba2 over attention"),
        ("triton-short-convolution", "no short convolution over attention"),
    ]


def test_a_card_without_kernels_has_no_backends(monkeypatch):
    monkeypatch.setattr(CudaPlatform, "_compiled_facts", lambda self: None)
    assert CudaPlatform().attention_backends() == ()


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("none", "TESSERA_PROVIDERS leaves it out"),
        ("flash_attention_3", "TESSERA_PROVIDERS leaves it out"),
        ("flashinfer, flash_attention_2", None),
    ],
)
def test_the_user_chooses_by_name(monkeypatch, chosen, why):
    monkeypatch.setenv(PROVIDERS, chosen)
    assert Provider("flash_attention_2", STAND_INS, {}).absent == why


@pytest.mark.parametrize(
    ("module", "needs", "why"),
    [
        (
            "no_such_module",
            {},
            f"{MISSING} cannot be imported (ModuleNotFoundError: No module named '{MISSING}')",
        ),
        ("flash_attn", {"no_such": ()}, f"{STAND_INS}.flash_attn has no no_such; install another version"),
        (
            "flash_attn",
            {"flash_attn_varlen_func": ("q", "seqused_k")},
            f"flash_attn_varlen_func of {STAND_INS}.flash_attn has no argument seqused_k; install another version",
        ),
    ],
)
def test_an_installed_version_that_cannot_be_used_is_skipped_with_one_line(caplog, module, needs, why):
    backend = FlashAttention2(TARGETS["sm_80"])
    backend.provider = Provider(backend.name, f"{STAND_INS}.{module}", needs)
    for _ in range(2):
        assert backend.supports(CASE.spec()) == why
    assert [record.getMessage() for record in caplog.records] == [f"flash_attention_2 is not used: {why}"]
    assert caplog.records[0].exc_info is None


def test_a_layer_that_it_does_not_take_does_not_import_it(caplog):
    backend = FlashAttention2(TARGETS["sm_80"])
    backend.provider = Provider(backend.name, MISSING, {})
    assert backend.supports(replace(CASE, sinks=True).spec()) == "no sinks"
    assert not caplog.records
