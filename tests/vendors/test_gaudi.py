"""`gaudi` alone: SynapseAI's ops, which launches are captured, and fp8."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tessera.runner.explain import explain
from tessera.testing.conformance import Case
from tests.engine.platforms.test_quantization import apart, scored
from tests.platforms.emulated import Family, Reference, answers
from tests.platforms.tiny_models import MAX_POSITIONS
from tests.vendors.chosen import PLATFORM, start
from tests.vendors.test_conformance import CASES, conforms

pytestmark = pytest.mark.compiler


def test_the_vendors_ops_compute_what_they_take(chip: Any, family: Family) -> None:
    with start(family("mixtral"), enforce_eager=True) as run:
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
    with start(family("llama")) as run:
        assert answers(run) == answers(reference("llama"))
        (choice,) = [one for one in run.executor.runner.build.ops.choices.values() if one.op == "rotary"]
        assert choice.how == "reference"
        assert choice.reason == "habana_frameworks.torch.hpex.kernels has no RotaryPosEmbeddingMode here"
        attention = next(one for one in explain(run.executor.runner.build) if one.what == "attention")
        assert attention.chosen == "reference"
        assert attention.others[0] == ("fused_sdpa", "habana_frameworks.torch.hpex.kernels has no FusedSDPA here")


def test_every_launch_is_a_replay_of_one_of_a_few_graphs(chip: Any, family: Family) -> None:
    """Rows 1, 2 and 4 that decode and prompts of 128 tokens, each over 4, 8 and 16 blocks."""
    with start(family("llama")) as run:
        runner = run.executor.runner
        assert MAX_POSITIONS // PLATFORM.block_size == 16
        assert set(runner.executables) == set(runner.shapes.keys())
        assert len(runner.executables) == (3 + 1) * 3
        chip.reset()
        answers(run, 40)
        assert not [name for name in chip.ops() if name.startswith("hpu::")]


def test_blocks_have_128_tokens_unless_the_user_says_otherwise(chip: Any, family: Family) -> None:
    with start(family("gemma2"), block_size=None) as run:
        assert {group.block_size for group in run.executor.runner.plan.groups} == {128}
        assert {key.blocks for key in run.executor.runner.executables} == {MAX_POSITIONS // 128}


def test_a_step_waits_for_nothing_but_tokens_of_the_step_before(chip: Any, family: Family) -> None:
    with start(family("llama"), check_kv_cache=False) as run:
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
    found = scored(model, PLATFORM.path, **flags)
    assert chip.ops()["hpu::fp8_gemm_v2"] == chip.ops()["hpu::cast_to_fp8_v2"] > 0
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25


@pytest.mark.parametrize("case", [case for case in CASES if case.id.startswith("packed/fp8-")], ids=str)
def test_fp8_of_gaudi_2_conforms(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HABANA_STAND_IN", "GAUDI2")
    conforms(case)
