"""Which layers FlashInfer takes, and what it is asked for. That the results are right is tested in
tests/gpus/test_providers.py."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from tessera.testing.attention import AttentionCase
from tessera_triton import TARGETS

pytest.importorskip("triton")

from tessera_cuda import flashinfer
from tessera_cuda.flashinfer import FLASHINFER, FlashInfer, _fits_split
from tessera_triton.providers import Provider

STAND_IN = "tests.platforms.providers.flashinfer"
CASE = AttentionCase(((1, 1),), head_dim=64, dtype="bfloat16")


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setattr(flashinfer, "which", lambda name: f"/usr/bin/{name}")
    found = FlashInfer(TARGETS["sm_80"])
    found.provider = Provider(found.name, STAND_IN, FLASHINFER)
    return found


def test_the_stand_in_has_the_arguments_of_the_published_wrapper(backend):
    assert backend.supports(CASE.spec()) is None
    said = json.loads((Path(__file__).parent / "flashinfer.json").read_text(encoding="utf-8"))["functions"]
    found = {name: inspect.signature(attrgetter(name)(backend.provider.loaded)) for name in FLASHINFER}
    assert said == {name: str(signature) for name, signature in found.items()}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (replace(CASE, softcap=30.0, window=100, dtype="float16", head_dim=256, heads=64, kv_heads=1), None),
        (replace(CASE, sinks=True), "no sinks"),
        (replace(CASE, dtype="float32"), "no kernels for float32"),
        (replace(CASE, kv_dtype="int8"), "keys and values in int8"),
        (replace(CASE, head_dim=96), "heads of 96, and it has 64, 128, 256"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(backend, case, why):
    assert backend.supports(case.spec()) == why


def test_it_is_not_used_where_nothing_compiles_its_kernels(backend, monkeypatch):
    monkeypatch.setattr(flashinfer, "which", lambda name: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert backend.supports(CASE.spec()) == (
        "it compiles its kernels: put nvcc on the PATH, set CUDA_HOME, or install flashinfer-jit-cache"
    )
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert backend.supports(CASE.spec()) is None


def test_keys_of_a_captured_launch_are_split_if_the_sums_have_room():
    spec = replace(CASE, heads=64, kv_heads=8, head_dim=128).spec()
    assert _fits_split(spec, rows=256, tokens=256)
    assert not _fits_split(spec, rows=1024, tokens=2048)
