"""What the platform makes of torch and of torch_npu, which are made up."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tessera.platform import (
    ActivationSpec,
    ActSpec,
    AddNormSpec,
    ExpertsSpec,
    FullAttentionSpec,
    GateSpec,
    LayerSpec,
    LinearSpec,
    NormSpec,
    PiecewiseGraphs,
    PlatformError,
    WorkerSpec,
)
from tessera.testing import REFERENCE, candidates
from tessera_ascend.attention import FusedInferAttention
from tessera_ascend.linear import Linear
from tessera_ascend.ops import AddNorm, Experts, Gate, RMSNorm
from tessera_ascend.platform import AscendPlatform

KERNELS = ("rms_norm", "add_norm", "rotary", "gate", "experts", "linear")
OP = object()


class Made(AscendPlatform):
    def __init__(self, torch):
        self.torch = torch


def torch_with(*, graphs=True):
    npu = SimpleNamespace(
        device_count=lambda: 2,
        set_device=lambda index: None,
        get_device_name=lambda index: "Ascend910B1",
        **({"NPUGraph": object} if graphs else {}),
    )
    return SimpleNamespace(
        __version__="2.13", npu=npu, ops=SimpleNamespace(npu=SimpleNamespace()), device=lambda *of: of
    )


def test_a_device_is_opened_by_its_number_and_named():
    device = Made(torch_with()).open(1)
    assert (device.target, device.name) == (("npu", 1), "Ascend910B1")
    with pytest.raises(PlatformError, match="^there is no device 2: torch finds 2; "):
        Made(torch_with()).open(2)


def test_without_torch_npu_the_platform_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(PlatformError, match=r"^platform 'ascend' needs torch_npu \(.*\); install CANN, source "):
        AscendPlatform().enter_process(WorkerSpec(rank=0, world_size=1, devices=(0,)))


def test_what_a_torch_npu_lacks_runs_on_the_reference_which_says_so():
    platform = Made(torch_with())
    (attention,) = platform.attention_backends()
    assert attention.supports(None) == "torch has no op npu::npu_fused_infer_attention_score here"
    found = platform.ops(REFERENCE)
    reasons = [found[name].kernel.supports(None) for name in KERNELS]
    assert reasons == [f"torch has no op npu::{op} here" for op in (
        "npu_rms_norm", "npu_add_rms_norm", "npu_rotary_mul", "npu_swiglu", "npu_grouped_matmul", "npu_format_cast"
    )]  # fmt: skip


def test_what_lies_between_attention_is_captured_in_decode_launches_whose_rows_double():
    assert type(Made(torch_with()).graph_runner(None)) is PiecewiseGraphs
    config = SimpleNamespace(
        cache=SimpleNamespace(block_size=128),
        model=SimpleNamespace(max_model_len=1000),
        scheduler=SimpleNamespace(max_num_seqs=20, max_decode_tokens=1),
    )
    shapes = Made(torch_with()).shapes(None, config)
    assert (shapes.decode_rows, shapes.blocks, shapes.prompt_tokens) == ((1, 2, 4, 8, 16, 20), (8,), ())


def test_a_torch_npu_without_graphs_launches_eagerly_and_says_why():
    platform = Made(torch_with(graphs=False))
    assert platform.graph_runner(None) == "torch_npu of torch 2.13 has no graphs"
    assert platform.shapes(None, None) is None


LAYER = LayerSpec(0, "attention", 4, 2, 64, 0.125, "bfloat16", FullAttentionSpec(2, 64, "bfloat16"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"dtype": "float32"}, "queries, keys and values in bfloat16 or float16 alone"),
        ({"window": 9}, "no windows, sinks or soft caps"),
        ({"head_dim": 24}, "heads of a multiple of 16 and at most 512 elements"),
        ({"kind": "mamba"}, "no attention over mamba"),
    ],
)
def test_layers_that_the_fused_op_does_not_take_are_declined(changed, reason):
    assert FusedInferAttention(OP, OP).supports(replace(LAYER, **changed)) == reason


NORM = NormSpec(64, "bfloat16", 1e-6)
INT8 = candidates("int8", 96)[0]
PRODUCT = LinearSpec(64, 96, "bfloat16")
WIDE = LinearSpec(64, 96, "bfloat16", experts=3)


@pytest.mark.parametrize(
    ("kernel", "spec", "reason"),
    [
        (RMSNorm(OP, OP), replace(NORM, offset=1.0), None),
        (RMSNorm(OP, "missing"), replace(NORM, offset=1.0), "missing"),
        (RMSNorm(OP, OP), replace(NORM, offset=0.5), "no offset to the weight but 1"),
        (RMSNorm(OP, OP), replace(NORM, emit=ActSpec("int8", "token")), "emits no quantized activations"),
        (AddNorm(OP), AddNormSpec(NORM, multiplier=0.3), "no multiplier"),
        (AddNorm(OP), AddNormSpec(replace(NORM, offset=1.0)), "no offset to the weight"),
        (Gate(OP), GateSpec(64, "bfloat16", "gelu"), "no gate of gelu"),
        (Experts(OP, OP, "missing"), None, "missing"),
        (Experts(OP, OP, OP), ExpertsSpec(WIDE, GateSpec(32, "bfloat16"), WIDE, 2), None),
        (
            Experts(OP, OP, OP),
            ExpertsSpec(replace(WIDE, scheme=INT8), GateSpec(32, "bfloat16"), WIDE, 2),
            "no quantized weights",
        ),
        (
            Experts(OP, OP, OP),
            ExpertsSpec(WIDE, ActivationSpec(64, "bfloat16", "relu2"), WIDE, 2),
            "no experts without gates, or with clamped ones",
        ),
        (Linear(OP, OP, OP), PRODUCT, None),
        (Linear(OP, OP, OP), WIDE, "no products of experts"),
        (Linear(OP, OP, OP), replace(PRODUCT, n=60), "not a multiple of 16 outputs and inputs"),
        (Linear(OP, OP, OP), replace(PRODUCT, scheme=INT8), None),
        (Linear(OP, "missing", OP), replace(PRODUCT, scheme=INT8), "missing"),
        (Linear(OP, OP, OP), replace(PRODUCT, n=48, scheme=INT8), "not a multiple of 32 outputs and inputs"),
        (
            Linear(OP, OP, OP),
            replace(PRODUCT, scheme=candidates("fp8", 96)[0]),
            "no weights but in int8 with a scale for each output",
        ),
        (
            Linear(OP, OP, OP),
            replace(PRODUCT, scheme=replace(INT8, activation=None)),
            "no activations but in int8 with a scale for each token",
        ),
    ],
)
def test_what_an_op_does_not_take_is_said(kernel, spec, reason):
    assert kernel.supports(spec) == reason
