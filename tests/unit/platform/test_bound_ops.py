"""Binding: who is asked, who is bound, what a fallback costs and how it is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.errors import PlatformError
from tessera.ops import REFERENCE
from tessera.platform import (
    ActSpec,
    AddNormSpec,
    BoundOps,
    Device,
    GatedMLPSpec,
    GateSpec,
    HostDevice,
    Kernel,
    LinearSpec,
    MemoryFigures,
    NormLinearSpec,
    NormSpec,
    Op,
    OpSet,
    PenaliseSpec,
    Quantized,
    QuantizeSpec,
    Reason,
    replace,
    with_extra,
)
from tessera.platform.ops import REPLACED_OPS, HotCall, Wrapper
from tessera.testing import OpInputs, assert_same

DEVICE = HostDevice(torch, MemoryFigures(0, 0, host=True))
NORM = NormSpec(40, "float32", 1e-6)
LINEAR = LinearSpec(24, 40, "float32")
NORM_LINEAR = NormLinearSpec(AddNormSpec(NORM), LINEAR)
MLP = GatedMLPSpec(LinearSpec(88, 40, "float32"), GateSpec(44, "float32"), LinearSpec(40, 44, "float32"))
INT8 = ActSpec("int8", granularity="token")


def bound(ops: OpSet = REFERENCE, **options: Any) -> BoundOps:
    return BoundOps(ops, DEVICE, **options)


class Refusing(Kernel[Any]):
    def supports(self, spec: Any) -> Reason | None:
        return "not on a Friday"

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        raise AssertionError("it was not asked to")


class FallingBack(Kernel[Any]):
    """Supports the place, and at a call finds that it cannot do it."""

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        assert device is DEVICE
        return ops.reference("rms_norm", spec)


class Int8Linear(Kernel[LinearSpec]):
    """Wants its input in int8; seen: what it got."""

    def __init__(self) -> None:
        self.seen: list[type] = []

    def wants(self, spec: LinearSpec) -> ActSpec | None:
        return INT8

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> HotCall:
        product = ops.reference("linear", spec)

        def linear(x: Any, weight: Any, *, out: Tensor | None = None) -> Tensor:
            self.seen.append(type(x))
            result: Tensor = product(x, weight, out=out)
            return result

        return linear


class EmittingNorm(Kernel[NormSpec]):
    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> HotCall:
        return ops.reference("rms_norm", spec)


def doubled(spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    return 2 * REFERENCE["rms_norm"].reference(spec, x, weight)


class Steady(Kernel[Any]):
    """Promises batch invariance, and is told when it is asked for. told: BoundOps.batch_invariant."""

    told: bool | None = None

    def batch_invariant(self, spec: Any) -> Reason | None:
        return None if spec.eps else "without eps it divides by 0"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> HotCall:
        self.told = ops.batch_invariant
        return lambda x, weight: x


# ---- who is bound ----------------------------------------------------------------------------------------------------


def test_a_place_is_bound_once() -> None:
    ops = bound()
    assert ops.bind("rms_norm", NORM) is ops.bind("rms_norm", NormSpec(40, "float32", 1e-6))
    assert ops.bind("rms_norm", NORM) is not ops.bind("rms_norm", NormSpec(40, "float32", 1e-5))


def test_choices_say_who_is_bound_and_why_not_native() -> None:
    ops = bound(replace(REFERENCE, rms_norm=Refusing(), linear=Int8Linear()))
    ops.bind("norm_linear", NORM_LINEAR)
    found = {name: (choice.how, choice.reason) for (name, _), choice in ops.choices.items()}
    assert found == {
        "norm_linear": ("parts", "no kernel"),
        "add_norm": ("parts", "no kernel"),
        "rms_norm": ("reference", "not on a Friday"),
        "linear": ("native", ""),
    }


def test_a_fallback_is_counted_each_time_it_runs() -> None:
    ops = bound(replace(REFERENCE, rms_norm=FallingBack()))
    call, expected = ops.bind("rms_norm", NORM), bound().bind("rms_norm", NORM)
    assert ops.fallbacks.total() == 0
    for seed in range(3):
        arguments = OpInputs(4, seed).arguments("rms_norm", NORM)
        assert_same(call(*arguments), expected(*arguments), 0)
    assert ops.fallbacks == {"rms_norm": 3}


def test_without_fallbacks_a_reference_is_one_line() -> None:
    ops = bound(replace(REFERENCE, rms_norm=Refusing()), no_fallback=True)
    with pytest.raises(
        PlatformError,
        match=r"op 'rms_norm' \(n=40, dtype=float32, eps=1e-06\) would run on the reference \(not on a Friday\), ",
    ) as raised:
        ops.bind("add_norm", AddNormSpec(NORM))
    assert "\n" not in raised.value.message


def test_without_fallbacks_a_composite_may_be_its_native_parts() -> None:
    assert REFERENCE["linear"].reference is not None
    ops = bound(replace(REFERENCE, rms_norm=doubled, linear=REFERENCE["linear"].reference), no_fallback=True)
    ops.bind("norm_linear", NORM_LINEAR)


def test_without_fallbacks_a_kernel_may_not_take_the_reference() -> None:
    ops = bound(replace(REFERENCE, rms_norm=FallingBack()), no_fallback=True)
    what = r"op 'rms_norm' \(n=40, .*\) would run on the reference \(inside the kernel of 'rms_norm'\), "
    with pytest.raises(PlatformError, match=what):
        ops.bind("add_norm", AddNormSpec(NORM))
    with pytest.raises(PlatformError, match=r"reference \(asked for outside of a kernel's bind\), "):
        bound(no_fallback=True).reference("rms_norm", NORM)


def test_the_reference_of_a_composite_is_its_parts() -> None:
    class Composite(Kernel[Any]):
        def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
            return ops.reference("add_norm", spec)

    native = bound(replace(REFERENCE, add_norm=Composite(), rms_norm=doubled), no_fallback=True)
    native.bind("add_norm", AddNormSpec(NORM))(*OpInputs(4).arguments("add_norm", AddNormSpec(NORM)))
    assert (native.fallbacks, native.referenced) == ({}, set())
    with pytest.raises(PlatformError, match=r"op 'rms_norm' .* \(no kernel\)"):
        bound(replace(REFERENCE, add_norm=Composite()), no_fallback=True).bind("add_norm", AddNormSpec(NORM))


def test_what_is_bound_to_the_reference_is_counted_as_what_a_kernel_takes() -> None:
    ops = bound(replace(REFERENCE, linear=Int8Linear()))
    arguments = OpInputs(4).arguments("norm_linear", NORM_LINEAR)
    for _ in range(2):
        ops.bind("norm_linear", NORM_LINEAR)(*arguments)
    assert ops.fallbacks == {"rms_norm": 2, "linear": 2}
    assert ops.referenced == {"linear", "rms_norm"}
    assert ops.choices["linear", LINEAR].inside == ("linear",)


def test_groups_reach_composites() -> None:
    class Tripling:
        rank, size = 0, 3

        def all_reduce(self, x: Tensor) -> Tensor:
            return 3 * x

    call = bound(groups={"tensor": Tripling()}).bind("add_norm", AddNormSpec(NORM, "tensor"))
    x, residual, weight = OpInputs(4).arguments("add_norm", AddNormSpec(NORM))
    _, total = call(x, residual, weight)
    assert_same(total, 3 * x + residual, 1e-6)


# ---- wrappers --------------------------------------------------------------------------------------------------------


def test_a_composite_with_a_wrapped_part_is_bound_as_its_parts() -> None:
    def never(spec: Any, *tensors: Any, **keywords: Any) -> Any:
        raise AssertionError("the composite would have hidden its part")

    seen = []

    def wrap(spec: LinearSpec, call: HotCall) -> HotCall:
        def wrapped(*tensors: Any, **keywords: Any) -> Any:
            seen.append(spec)
            return call(*tensors, **keywords) + 1

        return wrapped

    ops = bound(replace(REFERENCE, norm_linear=never, gated_mlp=never), wrappers={"linear": Wrapper(wrap)})
    arguments = OpInputs(4).arguments("norm_linear", NORM_LINEAR)
    y, _ = ops.bind("norm_linear", NORM_LINEAR)(*arguments)
    plain, _ = bound().bind("norm_linear", NORM_LINEAR)(*arguments)
    assert_same(y, plain + 1, 0)
    ops.bind("gated_mlp", MLP)(*OpInputs(4).arguments("gated_mlp", MLP))
    assert seen == [LINEAR, MLP.gate_up, MLP.down]
    assert ops.choices["norm_linear", NORM_LINEAR].reason == "a part is wrapped"


def test_a_wrapped_product_gets_plain_activations() -> None:
    linear = Int8Linear()
    ops = bound(
        replace(REFERENCE, linear=linear, rms_norm=EmittingNorm()),
        wrappers={"linear": Wrapper(lambda spec, call: call)},
    )
    ops.bind("norm_linear", NORM_LINEAR)(*OpInputs(4).arguments("norm_linear", NORM_LINEAR))
    assert linear.seen == [Tensor]


def test_a_wrapper_that_is_not_active_leaves_composites_whole() -> None:
    active, seen = False, []

    def fused(spec: Any, x: Tensor, *weights: Any, out: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x)

    def wrap(spec: LinearSpec, call: HotCall) -> HotCall:
        return lambda *tensors, **keywords: seen.append(spec) or call(*tensors, **keywords)

    ops = bound(replace(REFERENCE, gated_mlp=fused), wrappers={"linear": Wrapper(wrap, lambda: active)})
    call, arguments = ops.bind("gated_mlp", MLP), OpInputs(4).arguments("gated_mlp", MLP)
    assert not call(*arguments).any()
    assert seen == []
    active = True
    assert_same(call(*arguments), bound().bind("gated_mlp", MLP)(*arguments), 0)
    assert seen == [MLP.gate_up, MLP.down]


# ---- what a consumer wants, its producer emits -----------------------------------------------------------------------


def test_what_does_not_promise_batch_invariance_is_known_with_the_reason() -> None:
    kernel, worse = Steady(), NormSpec(40, "float32", 0.0)
    ops = bound(replace(REFERENCE, rms_norm=kernel, gate=doubled), batch_invariant=True)
    for name, spec in (("rms_norm", NORM), ("rms_norm", worse), ("gate", MLP.gate), ("norm_linear", NORM_LINEAR)):
        ops.bind(name, spec)
    ops.bind("penalise", PenaliseSpec(9))
    assert kernel.told
    assert ops.variant == {
        ("rms_norm", worse): "without eps it divides by 0",
        ("gate", MLP.gate): "batch invariance is not promised",
        ("linear", LINEAR): "the reference does not promise it",
    }


def test_nobody_is_asked_for_a_promise_that_is_not_wanted() -> None:
    kernel = Steady()
    ops = bound(replace(REFERENCE, rms_norm=kernel))
    ops.bind("rms_norm", NormSpec(40, "float32", 0.0))
    assert (kernel.told, ops.variant) == (False, {})


def test_with_batch_invariance_a_composite_with_a_wrapped_part_is_always_its_parts() -> None:
    """Otherwise a row's result would depend on whether the wrapper is active for another."""
    calls: list[str] = []

    def whole(spec: Any, *tensors: Any) -> None:
        calls.append("whole")

    def around(spec: Any, call: HotCall) -> HotCall:
        return lambda *tensors, **keywords: calls.append("part") or call(*tensors, **keywords)

    table, wrappers = replace(REFERENCE, gated_mlp=whole), {"gate": Wrapper(around, lambda: False)}
    arguments = OpInputs(3, seed=1).arguments("gated_mlp", MLP)
    for wanted in (False, True):
        bound(table, wrappers=wrappers, batch_invariant=wanted).bind("gated_mlp", MLP)(*arguments)
    assert calls == ["whole", "part"]


def test_a_norm_emits_what_the_product_after_it_wants() -> None:
    linear = Int8Linear()
    ops = bound(replace(REFERENCE, linear=linear, rms_norm=EmittingNorm()))
    arguments = OpInputs(6).arguments("norm_linear", NORM_LINEAR)
    y, residual = ops.bind("norm_linear", NORM_LINEAR)(*arguments)
    assert linear.seen == [Quantized]
    plain, same = bound().bind("norm_linear", NORM_LINEAR)(*arguments)
    assert_same(residual, same, 0)
    assert_same(y, plain, 5e-2)


def test_a_producer_that_cannot_emit_gives_plain_activations() -> None:
    linear = Int8Linear()
    ops = bound(replace(REFERENCE, linear=linear))
    ops.bind("norm_linear", NORM_LINEAR)(*OpInputs(6).arguments("norm_linear", NORM_LINEAR))
    ops.bind("gated_mlp", MLP)(*OpInputs(6).arguments("gated_mlp", MLP))
    assert linear.seen == [Tensor, Tensor, Tensor]


def test_what_a_composite_wants_is_what_its_first_part_wants() -> None:
    assert bound(replace(REFERENCE, linear=Int8Linear())).wants("gated_mlp", MLP) == INT8
    assert bound().wants("gated_mlp", MLP) is None
    assert bound(replace(REFERENCE, linear=Refusing())).wants("linear", LINEAR) is None


# ---- weights ---------------------------------------------------------------------------------------------------------


class Transposing(Int8Linear):
    def supports(self, spec: LinearSpec) -> Reason | None:
        return "too small" if spec.n < 24 else None

    def prepare(self, spec: LinearSpec, raw: Any, into: Any = None) -> Any:
        packed = {"weight": raw["weight"].T.contiguous()}
        return packed if into is None else {"weight": into["weight"].copy_(packed["weight"])}


def test_a_weight_is_prepared_by_whoever_is_bound() -> None:
    ops = bound(replace(REFERENCE, linear=Transposing()))
    raw = {"weight": torch.randn(24, 40)}
    packed = ops.prepare("linear", LINEAR, raw)
    assert packed["weight"].shape == (40, 24)
    small = LinearSpec(8, 40, "float32")
    assert ops.prepare("linear", small, raw) is raw


def test_a_second_weight_goes_where_the_first_is() -> None:
    for ops in (bound(), bound(replace(REFERENCE, linear=Transposing()))):
        packed = ops.prepare("linear", LINEAR, {"weight": torch.zeros(24, 40)})
        address = packed["weight"].data_ptr()
        again = ops.prepare("linear", LINEAR, {"weight": torch.ones(24, 40)}, packed)
        assert again["weight"].data_ptr() == address
        assert bool((again["weight"] == 1).all())


# ---- the table -------------------------------------------------------------------------------------------------------


def test_a_name_that_is_no_op_is_refused_with_those_that_are() -> None:
    with pytest.raises(PlatformError, match="there is no op 'rms_nrom'; the ops are embedding, segment"):
        replace(REFERENCE, rms_nrom=doubled)


def test_a_dead_name_says_what_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REPLACED_OPS == {}
    monkeypatch.setattr("tessera.platform.ops.REPLACED_OPS", {"silu_and_mul": "gate"})
    with pytest.raises(PlatformError, match="op 'silu_and_mul' no longer exists; gate replaced it"):
        replace(REFERENCE, silu_and_mul=doubled)


def test_replace_leaves_the_reference_as_it_was() -> None:
    ops = replace(REFERENCE, rms_norm=doubled)
    assert REFERENCE["rms_norm"].kernel is None
    assert ops["rms_norm"].reference is REFERENCE["rms_norm"].reference
    assert ops["linear"] is REFERENCE["linear"]
    x, weight = OpInputs(3).arguments("rms_norm", NORM)
    assert_same(bound(ops).bind("rms_norm", NORM)(x, weight), 2 * bound().bind("rms_norm", NORM)(x, weight), 0)


def test_an_extra_op_is_bound_replaced_and_has_a_name_of_its_own() -> None:
    def negate(spec: None, x: Tensor) -> Tensor:
        return -x

    ops = with_extra(REFERENCE, [Op("negate", "extra", negate)])
    assert ops.names()[-1] == "negate"
    assert "negate" not in REFERENCE.names()
    assert float(bound(ops).bind("negate", None)(torch.ones(1))) == -1.0
    native = replace(ops, negate=lambda spec, x: -2 * x, rms_norm=doubled)
    assert float(bound(native).bind("negate", None)(torch.ones(1))) == -2.0
    assert ops["negate"].kernel is None
    with pytest.raises(PlatformError, match="op 'negate' exists already"):
        with_extra(ops, [Op("negate", "extra", negate)])
    with pytest.raises(PlatformError, match="op 'linear' exists already"):
        with_extra(REFERENCE, [Op("linear", "extra", negate)])


def test_the_reference_quantises_within_half_a_step() -> None:
    x = torch.randn(7, 40)
    quantized = bound().bind("quantize", QuantizeSpec(40, "float32", INT8))(x)
    assert quantized.data.dtype == torch.int8
    assert quantized.scale.shape == (7, 1)
    assert bool(((quantized.data.float() * quantized.scale - x).abs() <= quantized.scale * 0.501).all())
