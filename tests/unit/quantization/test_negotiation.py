"""Who gets which scheme: what is asked for, what the platform says, what fits the shard."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tessera.errors import ModelError, PlatformError
from tessera.platform import BoundOps, Kernel, LinearSpec, Part, StoredWeight, TensorSpec, WeightFormat, replace
from tessera.quantization.encodings import encoded_scheme
from tessera.quantization.negotiation import negotiate
from tessera.quantization.schemes import candidates
from tessera.quantization.weights import NotQuantized
from tessera.testing import REFERENCE, ReferencePlatform


class Taking(Kernel):
    """Takes schemes without quantised activations alone."""

    def supports(self, spec):
        return None if spec.scheme is not None and spec.scheme.activation is None else "only its own scheme"

    def bind(self, spec, ops, device):
        raise AssertionError("not bound here")


class Answering(ReferencePlatform):
    """answer: of a scheme, in place of yes."""

    def __init__(self, answer):
        self.answer = answer

    def scheme(self, scheme):
        return self.answer(scheme)


def chosen(name, spec, answer, kernel=None):
    platform = Answering(answer)
    table = REFERENCE if kernel is None else replace(REFERENCE, linear=kernel)
    weights = negotiate(name, platform)
    (made,) = weights.choose(spec, [[Part("a.b.weight", (spec.n, spec.k))]], BoundOps(table, platform.open(0)))
    assert list(made.parts) == ["weight"]
    return made.spec, None if made.convert is None else made.convert.keywords["scheme"], weights


def weight_only(scheme):
    return dataclasses.replace(scheme, activation=None)


@pytest.mark.parametrize(("k", "group"), [(64, 64), (192, 64), (96, 32), (48, 16), (72, 8)])
def test_the_largest_group_that_divides_the_inputs(k, group):
    spec, stored, weights = chosen("int4", LinearSpec(5, k, "float32"), lambda scheme: scheme)
    assert stored is not None
    assert stored.weight.group == group
    assert spec == LinearSpec(5, k, "float32", stored)
    assert (weights.skipped, weights.quantised.total()) == ([], 1)


def test_a_weight_that_no_group_divides_stays_and_says_why():
    asked = LinearSpec(5, 20, "float32")
    spec, stored, weights = chosen("int4", asked, lambda scheme: scheme)
    assert (spec, stored) == (asked, None)
    (skipped,) = weights.skipped
    assert (skipped.name, skipped.reason, skipped.wanted) == (
        "a.b",
        "input size 20 is not divisible by any of 64, 32, 16, 8",
        True,
    )
    assert chosen("int8", asked, lambda scheme: scheme)[1] is not None


def test_a_platform_that_takes_no_such_scheme_is_one_line():
    with pytest.raises(PlatformError) as raised:
        negotiate("int4", Answering(lambda scheme: "four bits are too few"))
    assert raised.value.message == (
        "platform 'reference' does not take --quantization int4 (four bits are too few); remove the flag."
    )
    assert isinstance(negotiate(None, Answering(lambda scheme: "nothing")), NotQuantized)


def test_a_platform_may_refuse_some_groups():
    asked = LinearSpec(5, 64, "float32")
    small = chosen("int4", asked, lambda scheme: scheme if scheme.weight.group == 64 else "groups of 64 alone")
    assert small[1].weight.group == 64
    spec, stored, weights = chosen(
        "int4",
        LinearSpec(5, 32, "float32"),
        lambda scheme: scheme if scheme.weight.group == 64 else "groups of 64 alone",
    )
    assert (spec.scheme, stored, weights.skipped[0].reason) == (None, None, "groups of 64 alone")


def test_a_transformed_scheme_is_for_the_kernel_that_takes_it():
    asked, offered = LinearSpec(5, 64, "float32"), candidates("int8", 64)[0]
    spec, stored, _ = chosen("int8", asked, weight_only, Taking())
    assert spec.scheme == weight_only(offered)
    assert stored == offered
    spec, stored, _ = chosen("int8", asked, weight_only)  # the reference has what was offered
    assert (spec.scheme, stored) == (offered, offered)


def test_a_shard_too_small_for_the_kernel_is_the_reference_s():
    def in_panels(scheme):
        return dataclasses.replace(scheme, activation=None, granules=(32, 16))

    for n, k, native in ((64, 48, True), (48, 48, False), (64, 40, False)):
        spec, stored, _ = chosen("int8", LinearSpec(n, k, "float32"), in_panels, Taking())
        assert (spec.scheme != stored) is native


# ---- weights that a checkpoint has quantized


INT8 = candidates("int8", 64)[0]


class Storing(WeightFormat):
    """schemes: of weights by their names; others are not quantized."""

    def __init__(self, **schemes):
        self.schemes = schemes

    def stored(self, weight, module, dtype):
        name = weight.name.removesuffix(".weight")
        if name not in self.schemes:
            return f"{name} is no {module} of {dtype} that is quantized"
        parts = {part: Part(f"{name}.{part}", weight.whole) for part in self.schemes[name].parts}
        return StoredWeight(self.schemes[name], parts)


def stored(form, sources, answer=lambda scheme: scheme, kernel=None):
    """The only product of these weights, and what was decided."""
    (made,), weights = products(form, sources, answer, kernel)
    return made, weights


def products(form, sources, answer=lambda scheme: scheme, kernel=None, experts=0):
    platform = Answering(answer)
    table = REFERENCE if kernel is None else replace(REFERENCE, linear=kernel)
    weights = negotiate(None, platform, form, "packing")
    joins = [[Part(f"{name}.weight", (5, 64)) for name in sources]]
    asked = LinearSpec(5 * len(sources), 64, "float32", experts=experts)
    return weights.choose(asked, joins, BoundOps(table, platform.open(0))), weights


def test_sources_of_one_product_are_read_part_by_part():
    chosen, weights = stored(Storing(q=INT8, k=INT8), "qk")
    assert chosen.spec == LinearSpec(10, 64, "float32", INT8)
    assert {name: [part.name for part in joins[0]] for name, joins in chosen.parts.items()} == {
        "weight": ["q.weight", "k.weight"],
        "scale": ["q.scale", "k.scale"],
    }
    assert (weights.name, list(weights.quantised.values()), weights.skipped) == ("packing", [1], [])


def test_a_weight_that_is_not_quantized_is_read_as_it_is():
    chosen, weights = stored(Storing(k=INT8), "q")
    assert (chosen.spec.scheme, list(chosen.parts), chosen.convert) == (None, ["weight"], None)
    (skipped,) = weights.skipped
    assert (skipped.name, skipped.reason, skipped.wanted) == ("q", "q is no Linear of float32 that is quantized", False)


INT4 = candidates("int4", 64)[0]


@pytest.mark.parametrize(
    ("sources", "schemes", "expected"),
    [
        ("qkv", {"q": INT8, "k": INT8}, [("qk", INT8), ("v", None)]),
        ("qkv", {"q": INT8, "k": INT8, "v": INT4}, [("qk", INT8), ("v", INT4)]),
        ("qkv", {"q": INT4, "v": INT4}, [("q", INT4), ("k", None), ("v", INT4)]),
        ("gu", {"u": INT8}, [("g", None), ("u", INT8)]),
    ],
)
def test_sources_that_are_stored_differently_are_several_products(sources, schemes, expected):
    found, weights = products(Storing(**schemes), sources)
    assert [("".join(part.name[0] for part in one.parts["weight"][0]), one.spec.scheme) for one in found] == expected
    assert [one.spec.n for one in found] == [5 * len(names) for names, _ in expected]
    assert [list(one.parts) for one in found] == [
        ["weight"] if scheme is None else ["weight", "scale"] for _, scheme in expected
    ]
    assert weights.quantised.total() == sum(scheme is not None for _, scheme in expected)
    assert [one.name for one in weights.skipped] == [names for names, scheme in expected if scheme is None]


def test_experts_that_are_stored_differently_are_one_line():
    assert len(products(Storing(q=INT8, k=INT8), "qk", experts=1)[0]) == 1
    with pytest.raises(ModelError) as raised:
        products(Storing(q=INT8), "qk", experts=1)
    assert raised.value.message == (
        "the checkpoint stores 'q' and 'k' in different formats, but experts are computed as one product; use a copy "
        "of the model that quantizes both in the same way."
    )


class Decodable(Storing):
    def stored(self, weight, module, dtype):
        answer = super().stored(weight, module, dtype)
        return dataclasses.replace(answer, decoded=weight) if isinstance(answer, StoredWeight) else answer


def test_experts_that_can_be_decoded_are_if_they_are_stored_differently():
    def taken(form):
        (made,), weights = products(form, "gu", experts=1, kernel=Taking())
        return made.spec.scheme, weights

    first, other = (dataclasses.replace(scheme, activation=None) for scheme in (INT8, INT4))
    scheme, weights = taken(Decodable(g=first, u=first))
    assert (scheme, weights.reasons) == (first, {})
    scheme, weights = taken(Decodable(g=first, u=other))
    assert scheme is None
    assert set(weights.reasons.values()) == {"the experts of a layer are stored in different formats"}
    scheme, weights = taken(Decodable(g=first))
    assert (scheme, weights.skipped[0].name) == (None, "u")


def test_what_the_platform_declines_is_decoded():
    chosen, weights = stored(Storing(q=INT8), "q", lambda scheme: "no int8", Taking())
    assert (chosen.spec.scheme, chosen.convert) == (None, None)
    assert weights.reasons == {"int8, one scale per row, decoded to float32": "no int8"}
    ((part,),) = chosen.parts["weight"]
    values, scales = torch.randint(-127, 128, (5, 64), dtype=torch.int8), torch.rand(5)
    assert torch.equal(part.decoding.call(values, scales), values * scales[:, None])
    with pytest.raises(ModelError, match="the checkpoint's scales of 'q' are not finite; use another copy"):
        part.decoding.call(values, scales / 0)
    chosen, _ = stored(Storing(q=INT8), "q", weight_only, Taking())
    assert chosen.spec.scheme == weight_only(INT8)


def test_the_reference_computes_what_a_platform_without_kernels_takes():
    chosen, _ = stored(Storing(q=INT8), "q")
    assert chosen.spec.scheme == INT8
    chosen, _ = stored(Storing(q=INT8), "q", lambda scheme: "no int8")
    assert chosen.spec.scheme is None


def test_one_input_is_rounded_once_by_the_largest_scale():
    scheme = dataclasses.replace(INT8, parts={**INT8.parts, "input_scale": TensorSpec("float32")})
    chosen, _ = stored(Storing(q=scheme, k=scheme), "qk")
    raw = {"input_scale": torch.tensor([0.5, 2.0])}
    chosen.convert(raw)
    assert raw["input_scale"].tolist() == 2.0
    raw = {"input_scale": torch.tensor([[0.5, 2.0], [1.0, 0.25], [3.0, 3.0]])}  # of three experts
    chosen.convert(raw)
    assert raw["input_scale"].tolist() == [2.0, 1.0, 3.0]


# ---- blocks that --quantization int4 rounds to


def mixture(sources, k, answer=lambda scheme: scheme, kernel=None, experts=0):
    """The type of block or number of each product, with what is in it."""
    table = REFERENCE if kernel is None else replace(REFERENCE, linear=kernel)
    platform = Answering(answer)
    weights = negotiate("int4", platform)
    joins = [[Part(f"{name}.weight", (5, k)) for name in sources]]
    asked = LinearSpec(5 * len(sources), k, "float32", experts=experts)
    made = weights.choose(asked, joins, BoundOps(table, platform.open(0)))
    assert sum(one.spec.n for one in made) == asked.n
    assert weights.quantised.total() == len(made)
    return [(one.spec.scheme.weight.dtype, [part.name for part in one.parts["weight"][0]]) for one in made]


def test_parts_with_different_blocks_are_several_products():
    qkv = "q_proj", "k_proj", "v_proj"
    first, last = ["q_proj.weight", "k_proj.weight"], ["v_proj.weight"]
    assert mixture(qkv, 256, kernel=Taking()) == [("q4_k", first), ("q6_k", last)]
    assert mixture(qkv, 96, kernel=Taking()) == [("q5_0", first), ("q8_0", last)]


def test_groups_are_rounded_to_where_no_kernel_takes_blocks():
    def without_blocks(scheme):
        return "no blocks" if scheme.weight.encoding else scheme

    whole = [("int4", ["q_proj.weight", "k_proj.weight", "v_proj.weight"])]
    qkv = "q_proj", "k_proj", "v_proj"
    assert mixture(qkv, 256, without_blocks, Taking()) == whole
    assert mixture(qkv, 256) == whole  # the reference would decode blocks at every step
    assert mixture(qkv, 48, kernel=Taking()) == whole  # no block divides the inputs


def test_experts_are_rounded_to_blocks_as_one_product():
    assert mixture(["up_proj", "gate_proj"], 256, kernel=Taking(), experts=3)[0][0] == "q4_k"
    assert mixture(["down_proj"], 256, kernel=Taking(), experts=3)[0][0] == "q5_k"


def test_a_shard_that_blocks_of_256_do_not_divide_has_smaller_ones():
    assert mixture(["down_proj"], 768, kernel=Taking())[0][0] == "q5_k"
    assert mixture(["down_proj"], 384, kernel=Taking())[0][0] == "q5_1"


def test_a_table_is_rounded_as_the_head_is():
    platform = Answering(lambda scheme: scheme)
    weights = negotiate("int4", platform)
    ops = BoundOps(replace(REFERENCE, linear=Taking()), platform.open(0))
    chosen = weights.choose_table(LinearSpec(7, 64, "float32"), Part("model.embed_tokens.weight", (7, 64)), ops)
    assert chosen.spec.scheme.weight.dtype == "q8_0"
    raw = {"weight": torch.randn(7, 64)}
    chosen.convert(raw)
    assert raw["weight"].shape == (7, 2, 34)
    assert (
        negotiate("int8", platform).choose_table(LinearSpec(7, 64, "float32"), Part("x.weight", (7, 64)), ops) is None
    )


# ---- weights that are converted


class Int8Alone(Kernel):
    def supports(self, spec):
        return None if spec.scheme is None or spec.scheme.weight.dtype == "int8" else "int8 alone"

    def bind(self, spec, ops, device):
        raise AssertionError("not bound here")


class Plain(Int8Alone):
    def supports(self, spec):
        return None if spec.scheme is None else "no quantized weights"


class Encoded(WeightFormat):
    """Weights in blocks; those named "plain" are not quantized."""

    def stored(self, weight, module, dtype):
        if weight.name == "plain.weight":
            return "it is plain"
        return StoredWeight(encoded_scheme("q4_0"), {"weight": weight}, decoded=weight)


def converted(sources, *, convert=True, kernel=None):
    platform = Answering(lambda scheme: scheme)
    weights = negotiate(None, platform, Encoded(), "gguf", convert=convert)
    joins = [[Part(f"{name}.weight", (5, 64)) for name in sources]]
    ops = BoundOps(replace(REFERENCE, linear=kernel or Int8Alone()), platform.open(0))
    (made,) = weights.choose(LinearSpec(5 * len(sources), 64, "float32"), joins, ops)
    return made, weights


def test_what_no_kernel_takes_is_converted_when_asked(caplog):
    made, weights = converted("qk")
    scheme = candidates("int8", 64)[0]
    name = "q4_0, converted to int8, one scale per row; activations int8, one scale per token"
    assert (made.spec.scheme, dict(weights.quantised), weights.reasons) == (scheme, {name: 1}, {name: "int8 alone"})
    weight = torch.randn(10, 64)
    raw = {"weight": weight.clone()}
    made.convert(raw)
    made.convert({"weight": weight.clone()})  # logged once
    assert (raw["weight"].dtype, raw["scale"].shape) == (torch.int8, (10,))
    lost = ((raw["weight"] * raw["scale"][:, None] - weight).square().mean() / weight.square().mean()).sqrt()
    assert 0.001 < lost < 0.02
    (record,) = caplog.records
    assert record.getMessage() == (
        "weights are converted from q4_0 to int8, one scale per row; activations int8, one scale per token, at a loss: "
        f"the error is {100 * lost:.2f}% of the size of the weights of 'q' (root mean squares)"
    )


def test_what_is_not_asked_for_or_has_no_kernel_is_decoded():
    for made, weights in (converted("q", convert=False), converted("q", kernel=Plain())):
        assert made.spec.scheme is None
        assert made.convert is None
        assert dict(weights.quantised) == {"q4_0, decoded to float32": 1}
    made, weights = converted(["q", "plain"])
    assert made.spec.scheme is None
    assert dict(weights.quantised) == {"q4_0, decoded to float32": 1}
