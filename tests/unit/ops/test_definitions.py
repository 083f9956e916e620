"""Reference ops against definitions that share no code with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.errors import PlatformError
from tessera.ops import REFERENCE
from tessera.ops.tensors import torch_dtype
from tessera.platform import (
    ActivationSpec,
    ActSpec,
    AddNormSpec,
    Alone,
    BoundOps,
    EmbeddingSpec,
    ExpertsSpec,
    GateSpec,
    HostDevice,
    LayerNormSpec,
    LinearSpec,
    MemoryFigures,
    NormSpec,
    PackedEmbeddingSpec,
    QKNormSpec,
    QuantizeSpec,
    RotarySpec,
    RouteSpec,
    SoftCapSpec,
)
from tessera.testing import (
    TOLERANCES,
    HostReads,
    OpInputs,
    assert_same,
    candidates,
    quantised,
)

DEVICE = HostDevice(torch, MemoryFigures(0, 0, host=True))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def reference(name: str, spec, *arguments, **keywords):
    return BoundOps(REFERENCE, DEVICE).bind(name, spec)(*arguments, **keywords)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_experts_are_each_token_through_each_of_its_experts(dtype: str) -> None:
    for first in (0, 3):
        spec = ExpertsSpec(
            LinearSpec(88, 40, dtype, experts=5), GateSpec(44, dtype), LinearSpec(40, 44, dtype, experts=5), 2, first
        )
        x, weights, ids, gate_up, down = OpInputs(11).arguments("experts", spec)
        ids[0] = first + 5  # experts of another rank add nothing
        found = reference("experts", spec, x, weights, ids, gate_up, down)
        expected = torch.stack(
            [through_its_experts(spec, x[t], weights[t], ids[t], gate_up, down) for t in range(len(x))]
        )
        assert_same(found, expected, TOLERANCES[dtype])
        assert not found[0].any()


def test_experts_without_gates_are_as_wide_as_their_first_product() -> None:
    up, down = LinearSpec(44, 40, "float32", experts=3), LinearSpec(40, 44, "float32", experts=3)
    spec = ExpertsSpec(up, ActivationSpec(44, "float32", "relu2"), down, top_k=2)
    x, weights, ids, first, second = OpInputs(5).arguments("experts", spec)
    for token, shares, chosen, found in zip(
        x, weights, ids.tolist(), reference("experts", spec, x, weights, ids, first, second), strict=True
    ):
        hidden = [(first["weight"][one] @ token).clamp(min=0).square() for one in chosen]
        parts = [second["weight"][one] @ wide for one, wide in zip(chosen, hidden, strict=True)]
        assert_same(found, shares @ torch.stack(parts), TOLERANCES["float32"])


def through_its_experts(spec: ExpertsSpec, x, weights, ids, gate_up, down) -> Tensor:
    """The formula, for one token [k]."""
    total = torch.zeros_like(x, dtype=torch.float32)
    for weight, chosen in zip(weights, ids.tolist(), strict=True):
        here = chosen - spec.first
        if 0 <= here < spec.gate_up.experts:
            left, right = (gate_up["weight"][here] @ x).float().chunk(2)
            gated = (left / (1 + torch.exp(-left)) * right).to(x.dtype)
            total += weight * (down["weight"][here] @ gated).float()
    return total.to(x.dtype)


@pytest.mark.parametrize("renormalise", [True, False])
def test_routing_takes_the_largest_shares(renormalise: bool) -> None:
    logits = torch.randn(6, 7, generator=torch.Generator().manual_seed(3))
    weights, ids = reference("route", RouteSpec(7, 3, renormalise), logits)
    for row, chosen, shares in zip(logits.tolist(), ids.tolist(), weights.tolist(), strict=True):
        total = sum(math.exp(value) for value in row)
        order = sorted(range(7), key=lambda i: -row[i])[:3]
        assert chosen == order
        expected = [math.exp(row[i]) / total for i in order]
        scale = sum(expected) if renormalise else 1.0
        assert shares == pytest.approx([share / scale for share in expected], rel=1e-5)


ROUTES = [
    RouteSpec(11, 3, scoring="sigmoid", renormalise=False),
    RouteSpec(11, 4, bias=True, scale=2.5),
    RouteSpec(12, 5, groups=4, top_groups=2, renormalise=False),
    RouteSpec(15, 4, scoring="sigmoid", bias=True, groups=5, top_groups=2, group_top_k=2, scale=2.5),
]


@pytest.mark.parametrize("spec", ROUTES, ids=str)
def test_routing_chooses_by_biased_scores_in_the_best_groups(spec: RouteSpec) -> None:
    logits, *given = OpInputs(23, seed=4).arguments("route", spec)
    bias = given[0] - 1.0 if spec.bias else torch.zeros(spec.experts)  # most of them negative
    weights, ids = reference("route", spec, logits, *([bias] if spec.bias else []))
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    for row, chosen, shares in zip(logits.tolist(), ids.tolist(), weights.tolist(), strict=True):
        scores = [1 / (1 + math.exp(-value)) for value in row]
        if spec.scoring == "softmax":
            scores = [math.exp(value) / sum(map(math.exp, row)) for value in row]
        rated = [score + float(added) for score, added in zip(scores, bias, strict=True)]
        assert chosen == chosen_of(spec, rated)
        picked = [scores[expert] for expert in chosen]
        total = sum(picked) if spec.renormalise else 1.0
        assert shares == pytest.approx([spec.scale * score / total for score in picked], rel=1e-5)


def chosen_of(spec: RouteSpec, rated: list[float]) -> list[int]:
    """Python's sort keeps the order of equal ones."""
    size = spec.experts // spec.groups
    groups = [rated[start : start + size] for start in range(0, spec.experts, size)]
    sums = [sum(sorted(group)[-spec.group_top_k :]) for group in groups]
    best = sorted(range(spec.groups), key=lambda group: -sums[group])[: spec.top_groups]
    able = [expert for expert in range(spec.experts) if expert // size in best]
    return sorted(able, key=lambda expert: -rated[expert])[: spec.top_k]


def test_sparse_mixer_weighs_an_expert_among_those_that_are_left_and_near_it() -> None:
    spec = RouteSpec(5, 2, renormalise=False, scoring="sparsemixer", margin=0.2)
    weights, ids = reference("route", spec, torch.tensor([[0.9, 1.0, 0.5, -3.0, 0.95]]))
    assert ids.tolist() == [[1, 4]]
    first, second, third = (math.exp(logit) for logit in (1.0, 0.95, 0.9))
    assert weights[0].tolist() == pytest.approx([first / (first + second + third), second / (second + third)])


def test_of_equal_scores_the_lower_number_wins() -> None:
    _, ids = reference("route", RouteSpec(300, 7), torch.zeros(2, 300))
    assert ids.tolist() == [list(range(7))] * 2
    grouped = RouteSpec(300, 7, scoring="sigmoid", groups=100, top_groups=3, group_top_k=2)
    assert reference("route", grouped, torch.zeros(1, 300))[1].tolist() == [list(range(7))]


def test_an_expert_of_another_group_never_wins() -> None:
    """Not even against the most negative of biased scores, and not with the largest score of all."""
    spec = RouteSpec(6, 2, scoring="sigmoid", bias=True, groups=3, group_top_k=2)
    logits = torch.tensor([[0.0, 0.0, 9.0, -99.0, -99.0, -99.0]])
    bias = torch.tensor([-3e38, -1e30, 0.0, -3.4e38, -3.4e38, -3.4e38])
    assert reference("route", spec, logits, bias)[1].tolist() == [[1, 0]]


def test_weights_that_are_all_0_stay_0() -> None:
    weights, _ = reference("route", RouteSpec(5, 2, scoring="sigmoid"), torch.full((3, 5), -200.0))
    assert weights.tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("style", ["half", "pairs"])
def test_rotary_turns_pairs_as_complex_numbers(style: str) -> None:
    spec = RotarySpec(20, 16, style)
    q, k, positions, cos_sin = OpInputs(9).arguments("rotary", spec)
    before = q.clone(), k.clone()
    assert reference("rotary", spec, q, k, positions, cos_sin) is None
    turn = torch.complex(*cos_sin[positions.long()].chunk(2, dim=-1))[:, None]
    for heads, old in zip((q, k), before, strict=True):
        x = old[..., :16]
        pairs = torch.complex(*x.chunk(2, -1)) if style == "half" else torch.view_as_complex(x.unflatten(-1, (8, 2)))
        turned = pairs * turn
        expected = (
            torch.cat((turned.real, turned.imag), -1) if style == "half" else torch.view_as_real(turned).flatten(-2)
        )
        assert torch.allclose(heads[..., :16], expected, atol=1e-6)
        assert bool((heads[..., 16:] == old[..., 16:]).all())


def test_a_norm_divides_by_the_root_mean_square() -> None:
    x, weight = OpInputs(5).arguments("rms_norm", NormSpec(40, "float32", 0.0))
    for spec, scale in ((NormSpec(40, "float32", 0.5), weight), (NormSpec(40, "float32", 0.5, offset=1.0), weight + 1)):
        found = reference("rms_norm", spec, x, weight)
        for row, result in zip(x, found, strict=True):
            length = math.sqrt(sum(float(value) ** 2 for value in row) / 40 + 0.5)
            assert torch.allclose(result, row / length * scale, atol=1e-5)


def test_a_first_norm_has_no_residual() -> None:
    spec = AddNormSpec(NormSpec(40, "float32", 1e-6))
    x, _, weight = OpInputs(5).arguments("add_norm", spec)
    normed, residual = reference("add_norm", spec, x, None, weight)
    assert_same(normed, reference("rms_norm", spec.norm, x, weight), 0)
    assert_same(residual, x, 0)


def test_shards_of_an_embedding_add_up() -> None:
    weight, tokens = torch.randn(90, 12), torch.arange(90, dtype=torch.int32).flip(0)
    parts = [
        reference(
            "embedding", EmbeddingSpec(30, 12, "float32", start, sharded=True), tokens, weight[start : start + 30]
        )
        for start in (0, 30, 60)
    ]
    assert_same(sum(parts), weight[tokens.long()], 0)


@pytest.mark.parametrize("name", [None, "int8", "int4"])
def test_a_packed_embedding_has_the_rows_that_a_product_multiplies_with(name: str | None) -> None:
    """A row of the unit matrix picks one input of each output."""
    linear = LinearSpec(90, 16, "float32", candidates(name, 16)[0] if name else None)
    weight = torch.randn(90, 16)
    parts = {"weight": weight} if linear.scheme is None else quantised(weight, linear.scheme)
    tokens = torch.arange(90, dtype=torch.int32).flip(0)
    found = reference("packed_embedding", PackedEmbeddingSpec(linear, scale=2.0), tokens, parts)
    assert_same(found, 2.0 * reference("linear", linear, torch.eye(16), parts).T.flip(0), 1e-6)


@pytest.mark.parametrize("name", [None, "int8", "int4"])
def test_shards_of_a_packed_embedding_add_up(name: str | None) -> None:
    scheme = candidates(name, 16)[0] if name else None
    weight, tokens = torch.randn(90, 16), torch.arange(90, dtype=torch.int32).flip(0)

    def of(rows: Tensor, **shard: Any) -> Tensor:
        parts = {"weight": rows} if scheme is None else quantised(rows, scheme)
        spec = PackedEmbeddingSpec(LinearSpec(len(rows), 16, "float32", scheme), scale=0.5, **shard)
        return reference("packed_embedding", spec, tokens, parts)

    parts = [of(weight[start : start + 30], start=start, sharded=True) for start in (0, 30, 60)]
    assert_same(sum(parts), of(weight), 0)


def test_a_layer_norm_has_mean_0_and_variance_1() -> None:
    x, weight, bias = OpInputs(5).arguments("layer_norm", LayerNormSpec(40, "float32", 0.0))
    found = reference("layer_norm", LayerNormSpec(40, "float32", 0.5), x, weight, bias)
    for row, result in zip(x.tolist(), found, strict=True):
        mean = sum(row) / 40
        spread = math.sqrt(sum((value - mean) ** 2 for value in row) / 40 + 0.5)
        assert torch.allclose(result, (torch.tensor(row) - mean) / spread * weight + bias, atol=1e-5)


def test_a_multiplier_is_of_what_is_added_and_not_of_the_residual() -> None:
    spec = AddNormSpec(NormSpec(40, "float32", 1e-6), multiplier=0.25)
    x, residual, weight = OpInputs(5).arguments("add_norm", spec)
    assert_same(reference("add_norm", spec, x, residual, weight)[1], x * 0.25 + residual, 0)
    assert_same(reference("add_norm", spec, x, None, weight)[1], x, 0)


def test_a_soft_cap_is_a_tangent_of_what_was_scaled() -> None:
    (x,) = OpInputs(5).arguments("soft_cap", SoftCapSpec(40, "float32"))
    found = reference("soft_cap", SoftCapSpec(40, "float32", cap=1.5, scale=0.5), x)
    expected = [[1.5 * math.tanh(value * 0.5 / 1.5) for value in row] for row in x.tolist()]
    assert torch.allclose(found, torch.tensor(expected), atol=1e-6)


def test_queries_and_keys_are_normed_over_all_ranks() -> None:
    """Two ranks of a group whose sum is known: what each norms is its half of what one alone would norm."""
    x, q_weight, k_weight = OpInputs(3).arguments("qk_norm", QKNormSpec(24, 8, "float32", 1e-5))
    q, k, v = x.split((24, 8, 8), dim=-1)
    normed_q = reference("rms_norm", NormSpec(24, "float32", 1e-5), q, q_weight)
    normed_k = reference("rms_norm", NormSpec(8, "float32", 1e-5), k, k_weight)
    for rank in range(2):
        parts = [part.chunk(2, dim=-1)[rank] for part in (q, k, v)]
        others = [part.chunk(2, dim=-1)[1 - rank] for part in (q, k)]
        group = Summing(torch.stack([part.square().sum(-1, keepdim=True) for part in others]))
        mine = torch.cat(parts, dim=-1)
        ops = BoundOps(REFERENCE, DEVICE, {"tensor": group})
        call = ops.bind("qk_norm", QKNormSpec(12, 4, "float32", 1e-5, "tensor"))
        call(mine, q_weight.chunk(2)[rank], k_weight.chunk(2)[rank])
        expected = (normed_q.chunk(2, -1)[rank], normed_k.chunk(2, -1)[rank], parts[2])
        assert torch.allclose(mine, torch.cat(expected, dim=-1), atol=1e-5)


class Summing(Alone):
    """A group of two whose other rank brings a known tensor."""

    size = 2

    def __init__(self, other: torch.Tensor) -> None:
        self.other = other

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.other


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_quantizing_in_groups_scales_each_by_its_largest(dtype: str) -> None:
    spec = QuantizeSpec(40, "float32", ActSpec(dtype, granularity="group", group=16))
    (x,) = OpInputs(5).arguments("quantize", spec)
    x[0, 16:32] = 0.0
    found = reference("quantize", spec, x)
    limit = {"int8": 127.0, "fp8_e4m3": 448.0}[dtype]
    assert found.scale.shape == (5, 3)
    assert found.group == 16
    for number, part in enumerate(x.split(16, dim=1)):
        data = found.data[:, 16 * number : 16 * (number + 1)].float()
        assert torch.allclose(found.scale[:, number], part.abs().amax(1).clamp(min=1e-12) / limit)
        step = 0.501 if dtype == "int8" else data.abs().clamp(min=2**-6) / 15
        assert bool(((data - part / found.scale[:, number, None]).abs() <= step).all())
    assert not found.data[0, 16:32].float().any()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_fp8_has_a_short_name_and_torch_s(kind: str) -> None:
    full = "float8_e4m3fn" if kind == "e4m3" else f"float8_{kind}"
    assert torch_dtype(f"fp8_{kind}") is torch_dtype(full) is getattr(torch, full)


@pytest.mark.parametrize("name", ["float6", "Tensor", "", "nn"])
def test_a_dtype_that_torch_does_not_have_is_one_line(name: str) -> None:
    with pytest.raises(PlatformError, match=f"^torch has no dtype '{name}'; use a name such as bfloat16 or fp8_e4m3, "):
        torch_dtype(name)


OUT = [
    "embedding", "linear", "rms_norm", "gate", "experts", "gated_mlp", "moe",
    "layer_norm", "activation", "add", "norm_add", "mlp", "soft_cap", "packed_embedding", "segment_embedding",
]  # fmt: skip


@pytest.mark.parametrize("name", OUT)
def test_a_result_goes_where_the_caller_wants_it(name: str) -> None:
    for spec in REFERENCE[name].sample_specs():
        expected = reference(name, spec, *OpInputs(5).arguments(name, spec))
        out = torch.full_like(expected, torch.nan)
        assert reference(name, spec, *OpInputs(5).arguments(name, spec), out=out) is out
        assert_same(out, expected, 0)


@pytest.mark.parametrize("name", REFERENCE.names())
def test_a_reference_reads_nothing_back_and_knows_its_shapes(name: str) -> None:
    """It may run inside a capture: no read, and no shape that depends on a value."""
    specs = list(REFERENCE[name].sample_specs())
    assert specs
    for spec in specs:
        call = BoundOps(REFERENCE, DEVICE).bind(name, spec)
        arguments = OpInputs(5).arguments(name, spec)
        with HostReads() as reads:
            call(*arguments)
        assert reads.lines == []
