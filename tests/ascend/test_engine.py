"""Whole engines on `ascend` over an emulated device that queues, counts and captures: they answer as the reference,
decode launches are captured around attention, and no step reads the device behind its back. In float16, which the fused
attention takes, and in which rounding decides fewer tokens than in bfloat16."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tessera.runner.explain import explain
from tessera_ascend import attention
from tests.ascend.conftest import PLATFORM, python_path
from tests.engine.platforms.test_quantization import apart, scored
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

DTYPE = "float16"
FAMILIES = ("llama", "qwen3", "gemma2", "mixtral", "glm4_moe")
LAYERS = 2


def ascend(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORM, **{"dtype": DTYPE, "block_size": 16, **flags})


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_the_reference_s(chip: Any, family: Family, reference: Reference, name: str) -> None:
    with ascend(family(name)) as run:
        chip.reset()
        with chip.refused_reads():
            assert answers(run) == answers(reference(name, dtype=DTYPE))
            assert answers(run, 2) == answers(reference(name, dtype=DTYPE), 2)  # prefix hits
        assert chip.reads() == {}
        assert run.engine.info.notes == []


def test_the_vendors_ops_compute_what_they_take(chip: Any, family: Family) -> None:
    chip.reset()
    with ascend(family("mixtral"), enforce_eager=True) as run:
        answers(run)
        assert {name.removeprefix("npu::") for name in chip.ops() if name.startswith("npu::")} == {
            "npu_fused_infer_attention_score", "npu_scatter_pa_kv_cache", "npu_rms_norm", "npu_add_rms_norm",
            "npu_rotary_mul", "npu_swiglu", "npu_format_cast", "npu_moe_init_routing_v2", "npu_grouped_matmul",
            "npu_moe_token_unpermute",
        }  # fmt: skip
        assert not {"rms_norm", "rotary", "gate", "experts"} & run.executor.runner.build.ops.referenced


def test_what_a_version_lacks_runs_on_the_reference(
    chip: Any, family: Family, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "ATTENTION", "npu::of_a_later_version")
    with ascend(family("llama")) as run:
        assert answers(run) == answers(reference("llama", dtype=DTYPE))
        found = next(one for one in explain(run.executor.runner.build) if one.what == "attention")
        assert found.chosen == "reference"
        assert found.others[0] == ("fused_infer_attention", "torch has no op npu::of_a_later_version here")


def test_weights_are_cast_once_while_the_model_is_loaded(chip: Any, family: Family) -> None:
    """Queries with keys and values, the output, gate with up, and down; the head is no multiple of the tiles."""
    chip.reset()
    with ascend(family("llama")) as run:
        assert chip.ops()["npu::npu_format_cast"] == 4 * LAYERS
        chip.reset()
        answers(run)
        assert "npu::npu_format_cast" not in chip.ops()


def test_a_decode_step_launches_attention_between_its_graphs(chip: Any, family: Family) -> None:
    """Of the model's ops, those of attention alone; the rest is replayed, in one graph more than there are layers."""
    with ascend(family("llama"), check_kv_cache=False) as run:
        run.add([5, 6, 7], 30, ignore_eos=True)
        for _ in range(6):
            run.step()
        chip.reset()
        for _ in range(10):
            run.step()
        made = {name: count for name, count in chip.ops().items() if name.startswith("npu::")}
        assert made == {
            "npu::npu_rotary_mul": 10 * LAYERS * 2,
            "npu::npu_scatter_pa_kv_cache": 10 * LAYERS,
            "npu::npu_fused_infer_attention_score": 10 * LAYERS,
        }
        assert set(chip.waits()) == {"an event"}
        runner = run.executor.runner
        assert {key.rows for key in runner.executables} == {1, 2, 4}
        captured = next(iter(runner.executables.values()))
        assert len(captured.graph.graphs) == LAYERS + 1


def test_int8_products_are_as_far_from_the_plain_model_as_the_reference_s(chip: Any, family: Family) -> None:
    model = family("llama")
    plain, expected = (scored(model, "reference", dtype=DTYPE, **flags) for flags in ({}, {"quantization": "int8"}))
    chip.reset()
    found = scored(model, PLATFORM, dtype=DTYPE, quantization="int8")
    assert chip.ops()["npu::npu_quant_matmul"] == chip.ops()["npu::npu_dynamic_quant"] > 0
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25


def test_two_devices_answer_as_one(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with ascend(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert answers(run, 4) == answers(reference("llama", dtype=DTYPE), 4)


def test_drafts_change_no_token(family: Family, reference: Reference, chip: Any) -> None:
    """They are verified in launches of their own, which are captured too."""
    expected = answers(reference("llama", dtype=DTYPE), 8)
    found, kinds = answers_with_drafts(partial(ascend, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify"})


def test_adapters_and_grammars_share_a_batch(family: Family, chip: Any, tmp_path: Path) -> None:
    share_a_batch(partial(ascend, family("llama")), family("llama"), tmp_path, dtype=DTYPE)
