"""`ascend` alone: torch_npu's ops, casts of weights, ACL graphs around attention, and int8."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.runner.explain import explain
from tessera_ascend import attention
from tests.engine.platforms.test_quantization import apart, scored
from tests.platforms.emulated import Family, Reference, answers
from tests.vendors.chosen import PLATFORM, start

pytestmark = pytest.mark.compiler

LAYERS = 2


def test_the_vendors_ops_compute_what_they_take(chip: Any, family: Family) -> None:
    chip.reset()
    with start(family("mixtral"), enforce_eager=True) as run:
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
    with start(family("llama")) as run:
        assert answers(run) == answers(reference("llama", dtype=PLATFORM.dtype))
        found = next(one for one in explain(run.executor.runner.build) if one.what == "attention")
        assert found.chosen == "reference"
        assert found.others[0] == ("fused_infer_attention", "torch has no op npu::of_a_later_version here")


def test_weights_are_cast_once_while_the_model_is_loaded(chip: Any, family: Family) -> None:
    """Queries with keys and values, the output, gate with up, and down; the head is no multiple of the tiles."""
    chip.reset()
    with start(family("llama")) as run:
        assert chip.ops()["npu::npu_format_cast"] == 4 * LAYERS
        chip.reset()
        answers(run)
        assert "npu::npu_format_cast" not in chip.ops()


def test_a_decode_step_launches_attention_between_its_graphs(chip: Any, family: Family) -> None:
    """Of the model's ops, those of attention alone; the rest is replayed, in one graph more than there are layers."""
    with start(family("llama"), check_kv_cache=False) as run:
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
    plain, expected = (
        scored(model, "reference", dtype=PLATFORM.dtype, **flags) for flags in ({}, {"quantization": "int8"})
    )
    chip.reset()
    found = scored(model, PLATFORM.path, dtype=PLATFORM.dtype, quantization="int8")
    assert chip.ops()["npu::npu_quant_matmul"] == chip.ops()["npu::npu_dynamic_quant"] > 0
    assert 0.8 < apart(found, plain) / apart(expected, plain) < 1.25
