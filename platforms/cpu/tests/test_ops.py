"""What is particular about the ops that the platform overrides; that they are right is the conformance kit's to say."""

from __future__ import annotations

import pytest
import torch

from tessera.platform import BoundOps, GatedMLPSpec, GateSpec, LinearSpec, LoraSpec, NormSpec
from tessera.testing import REFERENCE, TOLERANCES, OpInputs, assert_same
from tessera_cpu import mlp
from tessera_cpu.lora import MANY_TOKENS
from tessera_cpu.platform import CpuPlatform

PLATFORM = CpuPlatform()
OPS = PLATFORM.ops(REFERENCE)
NATIVE = [name for name in OPS.names() if OPS[name].kernel is not None]


def test_what_is_overridden() -> None:
    core = ["embedding", "linear", "rms_norm", "rotary", "gate", "layer_norm", "activation", "add", "qk_norm"]
    others = [
        "packed_embedding",
        "segment_embedding",
        "gated_mlp",
        "sigmoid_gate",
        "soft_cap",
        "route",
        "experts",
        "moe",
        "logprobs",
        "mask_logits",
        "sample",
    ]
    before_a_draw = ["take_logits", "edit_logits", "penalise"]
    assert {*core, "add_norm", "add_layer_norm", "norm_add", "lora", *others, *before_a_draw} == set(NATIVE)


def test_an_mlp_in_stretches_is_one_in_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "BETWEEN", 0)  # stretches of ROWS
    tokens, device = 2 * mlp.ROWS + 3, PLATFORM.open(0)
    wide, narrow = LinearSpec(2 * 40, 24, "float32"), LinearSpec(24, 40, "float32")
    spec = GatedMLPSpec(wide, GateSpec(40, "float32", "silu"), narrow)
    own = BoundOps(OPS, device)
    native, reference = own.bind("gated_mlp", spec), BoundOps(REFERENCE, device).bind("gated_mlp", spec)
    mine, theirs = (OpInputs(tokens, ops=ops).arguments("gated_mlp", spec) for ops in (own, None))
    expected = reference(*theirs)
    assert_same(native(*mine), expected, TOLERANCES["float32"])
    out = torch.full_like(expected, torch.nan)
    assert native(*mine, out=out) is out
    assert_same(out, expected, TOLERANCES["float32"])


def test_an_offset_is_added_before_anything_is_rounded() -> None:
    """1.003 is 1 in bfloat16, but the mean of many products with it is not that of products with 1."""
    spec = NormSpec(512, "bfloat16", 1e-6, offset=1.0)
    (x, _), weight = OpInputs(19).arguments("rms_norm", spec), torch.full((512,), 0.003, dtype=torch.bfloat16)
    found = BoundOps(OPS, PLATFORM.open(0)).bind("rms_norm", spec)(x, weight)
    expected = torch.nn.functional.rms_norm(x.double(), (512,), weight.double() + 1, 1e-6)
    assert abs(found.double().abs().mean() / expected.abs().mean() - 1) < 1e-3


def test_experts_are_those_of_the_reference() -> None:
    op = REFERENCE["experts"]
    assert op.sample_specs is not None
    assert op.reference is not None
    for spec in op.sample_specs():
        own = BoundOps(OPS, PLATFORM.open(0))
        native, mine, theirs = own.bind("experts", spec), OpInputs(9, ops=own), OpInputs(9)
        expected = op.reference(spec, *theirs.arguments("experts", spec))
        assert_same(native(*mine.arguments("experts", spec)), expected, TOLERANCES[spec.gate.dtype])


@pytest.mark.parametrize("tokens", [1, 3 * MANY_TOKENS - 1, 3 * MANY_TOKENS])
def test_few_tokens_and_many_get_what_their_own_adapter_adds(tokens: int) -> None:
    """Also if another adapter's weights are too large for the numbers between its products."""
    spec = LoraSpec((24, 16), 40, 5, 4, "float32")
    y, x, a, b, scales, slots = OpInputs(tokens).arguments("lora", spec)
    a[2] *= 2e38
    slots.copy_(torch.arange(tokens) % 3 - 1)
    slots[0] = 2
    expected = y.clone()
    for own in range(tokens):
        if slots[own] >= 0:
            low, slot = (a[slots[own]] @ x[own]).split(spec.rank), slots[own]
            parts = [each @ part for part, each in zip(b[slot].split(spec.layers, dim=1), low, strict=True)]
            expected[own] += scales[slot] * torch.cat(parts)
    BoundOps(OPS, PLATFORM.open(0)).bind("lora", spec)(y, x, a, b, scales, slots)
    assert_same(y[1:], expected[1:], TOLERANCES["float32"])
    none = torch.full_like(slots, -1)
    BoundOps(OPS, PLATFORM.open(0)).bind("lora", spec)(y, x, a, b, scales, none)
    assert_same(y[1:], expected[1:], TOLERANCES["float32"])


def test_a_prepared_weight_can_be_written_again() -> None:
    """The same tensors, another content: a weight update without a new start."""
    for spec in (LinearSpec(19, 37, "bfloat16", bias=True), LinearSpec(8, 12, "float32", experts=3)):
        ops, raw, other = (
            BoundOps(OPS, PLATFORM.open(0)),
            *(OpInputs(1, seed).arguments("linear", spec)[1] for seed in (1, 2)),
        )
        packed = ops.prepare("linear", spec, raw)
        standing = dict(packed)
        again = ops.prepare("linear", spec, other, packed)
        fresh = ops.prepare("linear", spec, other)
        for name, tensor in standing.items():
            assert again[name] is tensor
            dense, expected = (t.to_dense() if t.is_mkldnn else t for t in (tensor, fresh[name]))
            assert_same(dense, expected, 0.0)
