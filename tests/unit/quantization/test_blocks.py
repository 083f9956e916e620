"""Weights with a scale for each block: what they mean, whatever part of them is read, and however they are joined."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import ModelError
from tessera.ops.linear import linear, packed_embedding
from tessera.ops.moe import experts
from tessera.ops.quantize import meaning
from tessera.platform import (
    ActSpec,
    ExpertsSpec,
    GateSpec,
    LinearSpec,
    PackedEmbeddingSpec,
    Part,
    Quantized,
    QuantSpec,
    Scheme,
    TensorSpec,
)
from tessera.quantization.blocks import joinable, stored_in_blocks
from tessera.quantization.rounding import quantised
from tests.platforms.packed_models import in_blocks
from tests.unit.quantization.test_unpacking import read

N, K, BLOCK = 42, 50, (16, 12)


def scheme(block=BLOCK, element="float8_e4m3fn", activation=None):
    parts = {"weight": TensorSpec(element, (1, 1)), "scale": TensorSpec("float32", block)}
    return Scheme(QuantSpec(element, "block", block=block), activation, parts=parts)


def weight_of(n=N, k=K, seed=1):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-4, 4, n)[:, None]


# ---- meaning


def test_the_scale_of_a_block_is_that_of_each_of_its_elements():
    elements, scale, expected = in_blocks(weight_of(), BLOCK)
    assert scale.shape == (3, 5)  # 42 is 2.6 times 16, and 50 is 4.2 times 12
    assert torch.equal(meaning({"weight": elements, "scale": scale}, scheme()), expected)
    lead = {"weight": elements.expand(2, -1, -1), "scale": torch.stack((scale, 2 * scale))}
    assert torch.equal(meaning(lead, scheme())[1], 2 * expected)


def test_weights_are_rounded_block_by_block():
    weight = torch.stack((weight_of(seed=1), weight_of(seed=2)))
    parts = quantised(weight, scheme())
    for number, one in enumerate(weight):
        elements, scale, _ = in_blocks(one, BLOCK)
        assert torch.allclose(parts["scale"][number], scale)
        assert torch.equal(parts["weight"][number].float(), elements.float())
    on_meta = quantised(weight.to("meta"), scheme())
    assert {name: tensor.shape for name, tensor in on_meta.items()} == {name: one.shape for name, one in parts.items()}


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8"])
def test_the_product_is_that_of_what_the_parts_mean(element, monkeypatch):
    """A platform may turn fp8 of one kind into another, in Platform.scheme; in stretches of rows that cut blocks."""
    monkeypatch.setattr("tessera.ops.linear._STRETCH", 5 * K)
    random = torch.Generator().manual_seed(4)
    x, parts = torch.randn(6, K, generator=random), quantised(torch.randn(N, K, generator=random), scheme())
    taken = scheme(element=element)
    given = quantised(meaning(parts, scheme()), taken)
    assert given["weight"].dtype == getattr(torch, element)
    found = linear(LinearSpec(N, K, "float32", taken), x, given)
    assert torch.allclose(found, x @ meaning(given, taken).T, atol=1e-4)
    step = {"float8_e4m3fn": 0.0, "int8": 0.03}.get(element, 0.13)
    assert (
        (meaning(given, taken) - meaning(parts, scheme())).abs() <= step * meaning(parts, scheme()).abs() + step
    ).all()


@pytest.mark.parametrize(("kind", "limit"), [("fp8_e4m3", 448), ("float8_e4m3fnuz", 240), ("int8", 127)])
def test_an_activation_in_groups_has_a_scale_for_each_of_them(kind, limit):
    groups = ActSpec(kind, granularity="group", group=BLOCK[1])
    random = torch.Generator().manual_seed(5)
    x = torch.randn(3, K, generator=random) * torch.logspace(-3, 3, K)
    parts = quantised(weight_of(), scheme())
    found = linear(LinearSpec(N, K, "float32", scheme(activation=groups)), x, parts)
    rounded, scales = [], []
    for first in range(0, K, BLOCK[1]):
        some = x[:, first : first + BLOCK[1]]
        scale = some.abs().amax(1, keepdim=True) / limit
        data = some / scale
        data = data.round() if kind == "int8" else data.to(getattr(torch, kind.replace("fp8_e4m3", "float8_e4m3fn")))
        rounded.append(data.float() * scale)
        scales.append(scale)
    whole = torch.cat(rounded, 1)
    assert not torch.allclose(whole, x, rtol=1e-3)
    expected = whole.double() @ meaning(parts, scheme()).double().T
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-3 * float(expected.abs().mean()))
    spread = torch.cat(scales, 1).repeat_interleave(BLOCK[1], 1)[:, :K]
    given = Quantized(whole / spread, torch.cat(scales, 1), None, BLOCK[1])
    again = linear(LinearSpec(N, K, "float32", scheme()), given, parts)
    assert torch.allclose(again.double(), expected, rtol=1e-4, atol=1e-3 * float(expected.abs().mean()))


def test_rows_are_looked_up_in_blocks():
    parts, tokens = quantised(weight_of(), scheme()), torch.tensor([41, 0, 15, 16, 17], dtype=torch.int32)
    found = packed_embedding(PackedEmbeddingSpec(LinearSpec(N, K, "float32", scheme())), tokens, parts)
    assert torch.equal(found, meaning(parts, scheme())[tokens.long()])


def test_experts_have_blocks_of_their_own():
    random = torch.Generator().manual_seed(6)
    wide, back = torch.randn(3, 2 * 22, K, generator=random) / 7, torch.randn(3, K, 22, generator=random) / 5
    packed = [quantised(one, scheme()) for one in (wide, back)]
    x, ids = torch.randn(4, K, generator=random), torch.tensor([[0, 2], [1, 0], [2, 1], [1, 2]], dtype=torch.int32)
    shares = torch.rand(4, 2, generator=random)

    def computed(weights, kind):
        spec = ExpertsSpec(
            LinearSpec(44, K, "float32", kind, experts=3), GateSpec(22, "float32"),
            LinearSpec(K, 22, "float32", kind, experts=3), top_k=2,
        )  # fmt: skip
        return experts(spec, x, shares, ids, *weights)

    meant = [{"weight": meaning(one, scheme())} for one in packed]
    assert torch.allclose(computed(packed, scheme()), computed(meant, None), atol=1e-5)


# ---- shards


ROWS = [None, (0, 16), (16, 42), (0, 21), (21, 42), (8, 24), (13, 14), (32, 53)]
COLUMNS = [None, (0, 24), (24, 50), (12, 36)]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_shard_means_its_part_of_the_whole(rows, columns):
    elements, scale, whole = in_blocks(weight_of(), BLOCK)
    tensors = {"weight": elements.float(), "weight_scale_inv": scale}
    found = stored_in_blocks(Part("a.weight", (N, K), rows, columns), "weight_scale_inv", BLOCK, None)
    parts = {name: read(part, tensors) for name, part in found.parts.items()}
    meant = meaning(parts, found.scheme)
    expected = whole[slice(*rows) if rows else slice(None), slice(*columns) if columns else slice(None)]
    assert torch.equal(meant[: len(expected)], expected)
    assert not meant[len(expected) :].any()  # a vocabulary's rows beyond the last
    per = found.scheme.parts["scale"].per
    assert parts["scale"].shape == tuple(-(-size // each) for size, each in zip(meant.shape, per, strict=True))


@pytest.mark.parametrize(
    ("rows", "block"), [(None, 16), ((0, 16), 16), ((16, 48), 16), ((0, 24), 8), ((24, 48), 8), ((21, 42), 1)]
)
def test_a_shard_that_cuts_outputs_of_a_block_has_blocks_of_fewer(rows, block):
    found = stored_in_blocks(Part("a.weight", (48, K), rows), "weight_scale", BLOCK, None)
    assert found.scheme.weight.block == (block, 12)
    assert found.scheme.parts["scale"].per == (block, 12)


@pytest.mark.parametrize("columns", [(0, 25), (25, 50), (6, 12), (24, 30)])
def test_a_shard_that_cuts_inputs_of_a_block_is_refused(columns):
    with pytest.raises(ModelError) as raised:
        stored_in_blocks(Part("a.down_proj.weight", (N, K), columns=columns), "weight_scale", BLOCK, None)
    assert raised.value.message == (
        f"'a.down_proj' is quantized in blocks of 16 x 12, which a shard of {columns[1] - columns[0]} of its "
        "50 inputs cuts; use another --tensor-parallel-size."
    )


# ---- joined


@pytest.mark.parametrize(("sizes", "block"), [((40, 24, 24), 8), ((32, 16, 7), 16), ((42, 42), 2), ((33, 16), 1)])
def test_joined_weights_have_blocks_that_none_of_them_cuts(sizes, block):
    made, expected = [], []
    for seed, n in enumerate(sizes):
        elements, scale, meant = in_blocks(weight_of(n, seed=seed), BLOCK)
        part = Part("a.weight", (n, K))
        made.append(
            (
                n,
                stored_in_blocks(part, "weight_scale", BLOCK, None),
                {"weight": elements.float(), "weight_scale": scale},
            )
        )
        expected.append(meant)
    (join,) = joinable([[(n, stored) for n, stored, _ in made]])
    assert {one.scheme.weight.block for one in join} == {(block, 12)}
    assert {one.scheme for one in join} == {join[0].scheme}
    parts = {
        name: torch.cat([read(one.parts[name], tensors) for one, (_, _, tensors) in zip(join, made, strict=True)])
        for name in ("weight", "scale")
    }
    assert torch.equal(meaning(parts, join[0].scheme), torch.cat(expected))


def test_a_single_weight_keeps_its_blocks():
    stored = stored_in_blocks(Part("a.weight", (N, K)), "weight_scale", BLOCK, None)
    assert joinable([[(N, stored)], [(N, stored)]]) == [[stored], [stored]]
