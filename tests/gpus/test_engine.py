"""Whole engines on the platforms for GPUs, over a chip that queues, counts and captures, with the library's kernels by
Triton's interpreter: they answer as the reference does, and no step reads the device behind its back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.platforms.test_quantization import apart, scored
from tests.gpus.conftest import PLATFORMS, python_path
from tests.platforms.emulated import (
    Family,
    Reference,
    answers,
    answers_with_drafts,
    on_device,
    share_a_batch,
)
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler

FAMILIES = ("llama", "qwen3", "gemma2", "mixtral", "glm4_moe", "deepseek_v3")
STATES = ("qwen3_5_text", "nemotron_h", "lfm2")
DAILY = {("cuda", "llama"), ("cuda", "mixtral"), ("cuda", "gemma2"), ("cuda", "lfm2")}


def gpu(model: Path, platform: str = "cuda", **flags: Any) -> EngineRun:
    return on_device(model, PLATFORMS[platform], **flags)


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        pytest.param(platform, name, marks=() if (platform, name) in DAILY else pytest.mark.nightly)
        for platform in PLATFORMS
        for name in FAMILIES + STATES * (platform == "cuda")
    ],
)
def test_answers_are_the_reference_s(chip: Any, family: Family, reference: Reference, platform: str, name: str) -> None:
    with gpu(family(name), platform) as run:
        chip.reset()
        with chip.refused_reads():
            assert answers(run) == answers(reference(name))
            assert answers(run, 2) == answers(reference(name), 2)  # prefix hits
        assert chip.reads() == {}
        assert not run.executor.runner.build.ops.referenced
        assert not run.executor.runner.build.fallbacks
        assert not [note for note in run.engine.info.notes if "not captured" in note]


INT4 = {"quantization": "int4"}


@pytest.mark.parametrize(
    "flags",
    [
        {"quantization": "int8"},
        pytest.param(INT4, marks=pytest.mark.nightly),
        pytest.param({"quantization": "fp8"}, marks=pytest.mark.nightly),
        {"kv_cache_dtype": "fp8"},
        pytest.param({"kv_cache_dtype": "int8"}, marks=pytest.mark.nightly),
    ],
    ids=lambda flags: "-".join(next(iter(flags.items()))),
)
def test_eight_and_four_bits_are_the_reference_s(family: Family, chip: Any, flags: dict[str, str]) -> None:
    model = family("llama")
    # The reference has no kernel, and would round int4 to groups instead of blocks.
    expected = scored(model, "strict", executor=None, **flags) if flags == INT4 else scored(model, "reference", **flags)
    changed = apart(scored(model, "reference"), expected)
    assert 1e-4 < changed < 0.5
    assert apart(scored(model, PLATFORMS["cuda"], **flags), expected) < 0.05 * changed


def test_another_kind_of_fp8_is_as_far_from_the_plain_model(family: Family, chip: Any) -> None:
    """gfx942's ends at 240, not at 448, so activations are rounded to other numbers."""
    model = family("llama")
    plain = scored(model, "reference")
    found, expected = (
        apart(scored(model, platform, quantization="fp8"), plain) for platform in (PLATFORMS["rocm"], "reference")
    )
    assert 0.8 < found / expected < 1.25


def test_two_devices_answer_as_one(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with gpu(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert answers(run, 4) == answers(reference("llama"), 4)


def test_drafts_change_no_token(family: Family, reference: Reference, chip: Any) -> None:
    """They are verified in launches of their own, which are captured too."""
    expected = answers(reference("llama"), 8)
    found, kinds = answers_with_drafts(partial(gpu, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify", "mixed"})


def test_adapters_and_grammars_share_a_batch(family: Family, chip: Any, tmp_path: Path) -> None:
    share_a_batch(partial(gpu, family("llama")), family("llama"), tmp_path)
