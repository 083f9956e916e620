"""Whole engines on `gaudi` over an emulated device that queues, counts and captures: they answer as the reference does,
in launches of a few shapes, all of them captured, and no step reads the device behind its back."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tessera.runner.explain import explain
from tests.engine.platforms.test_quantization import apart, scored
from tests.gaudi.conftest import PLATFORM, python_path
from tests.platforms.emulated import (
    Family,
    Reference,
    answers,
    answers_with_drafts,
    on_device,
    share_a_batch,
)
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import MAX_POSITIONS

pytestmark = pytest.mark.compiler

BLOCK = 16
FAMILIES = ("llama", "mistral", "qwen3", "gemma2", "mixtral", "glm4_moe")


def gaudi(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORM, **{"block_size": BLOCK, **flags})


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_the_reference_s(chip: Any, family: Family, reference: Reference, name: str) -> None:
    with gaudi(family(name)) as run:
        chip.reset()
        with chip.refused_reads():
            assert answers(run) == answers(reference(name))
            assert answers(run, 2) == answers(reference(name), 2)  # prefix hits
        assert chip.reads() == {}
        assert run.engine.info.notes == []


def test_the_vendors_ops_compute_what_they_take(chip: Any, family: Family) -> None:
    with gaudi(family("mixtral"), enforce_eager=True) as run:
        chip.reset()
        answers(run)
        named = {name for name in chip.ops() if name.startswith("hpu::")}
        assert named == {f"hpu::{op}" for op in (
            "sdpa_recomp_fwd", "rms_norm_fast", "rotary_pos_embedding", "mixture_of_experts"
        )}  # fmt: skip
        assert not {"rms_norm", "rotary", "experts"} & run.executor.runner.build.ops.referenced


def test_what_a_version_lacks_runs_on_the_reference(
    chip: Any, family: Family, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = import_module("habana_frameworks.torch.hpex.kernels")
    for name in ("FusedSDPA", "RotaryPosEmbeddingMode"):
        monkeypatch.delattr(kernels, name)
    with gaudi(family("llama")) as run:
        assert answers(run) == answers(reference("llama"))
        (choice,) = [one for one in run.executor.runner.build.ops.choices.values() if one.op == "rotary"]
        assert choice.how == "reference"
        assert choice.reason == "habana_frameworks.torch.hpex.kernels has no RotaryPosEmbeddingMode here"
        attention = next(one for one in explain(run.executor.runner.build) if one.what == "attention")
        assert attention.chosen == "reference"
        assert attention.others[0] == ("fused_sdpa", "habana_frameworks.torch.hpex.kernels has no FusedSDPA here")


def test_every_launch_is_a_replay_of_one_of_a_few_graphs(chip: Any, family: Family) -> None:
    """Rows 1, 2 and 4 that decode and prompts of 128 tokens, each over 4, 8 and 16 blocks."""
    with gaudi(family("llama")) as run:
        runner = run.executor.runner
        assert MAX_POSITIONS // BLOCK == 16
        assert set(runner.executables) == set(runner.shapes.keys())
        assert len(runner.executables) == (3 + 1) * 3
        chip.reset()
        answers(run, 40)
        assert not [name for name in chip.ops() if name.startswith("hpu::")]


def test_graphs_grow_with_the_logarithm_of_what_is_served(chip: Any, family: Family) -> None:
    with gaudi(family("llama"), max_num_seqs=64, max_num_batched_tokens=256, enforce_eager=True) as run:
        keys = run.executor.runner.shapes.keys()
        assert len(keys) == (7 + 2) * 3
        assert {key.rows for key in keys if key.kind == "decode"} == {1, 2, 4, 8, 16, 32, 64}
        assert {key.width for key in keys if key.kind == "prefill"} == {128, 256}


def test_blocks_have_128_tokens_unless_the_user_says_otherwise(chip: Any, family: Family) -> None:
    with gaudi(family("gemma2"), block_size=None) as run:
        assert {group.block_size for group in run.executor.runner.plan.groups} == {128}
        assert {key.blocks for key in run.executor.runner.executables} == {MAX_POSITIONS // 128}


def test_a_step_waits_for_nothing_but_tokens_of_the_step_before(chip: Any, family: Family) -> None:
    with gaudi(family("llama"), check_kv_cache=False) as run:
        answers(run)
        chip.reset()
        answers(run, 60)
        assert set(chip.waits()) == {"an event"}


@pytest.mark.parametrize("device", ["GAUDI2", "GAUDI3"])
def test_fp8_products_are_the_reference_s(
    chip: Any, family: Family, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HABANA_STAND_IN", device)
    model, flags = family("llama"), {"dtype": "bfloat16", "quantization": "fp8"}
    plain, expected = scored(model, "reference", dtype="bfloat16"), scored(model, "reference", **flags)
    chip.reset()
    found = scored(model, PLATFORM, **flags)
    assert chip.ops()["hpu::fp8_gemm_v2"] == chip.ops()["hpu::cast_to_fp8_v2"] > 0
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25


def test_two_devices_answer_as_one(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with gaudi(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert answers(run, 4) == answers(reference("llama"), 4)


def test_drafts_change_no_token(family: Family, reference: Reference, chip: Any) -> None:
    """They are verified in launches of their own, which are captured too."""
    expected = answers(reference("llama"), 8)
    found, kinds = answers_with_drafts(partial(gaudi, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify", "prefill"})


def test_adapters_and_grammars_share_a_batch(family: Family, chip: Any, tmp_path: Path) -> None:
    share_a_batch(partial(gaudi, family("llama")), family("llama"), tmp_path)
