"""The kernels of routing, experts and adapters compute what their ops' references do, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tessera.platform import ExpertsSpec, GateSpec, LinearSpec, LoraSpec, RouteSpec
from tessera.testing import REFERENCE, OpInputs, assert_same, tolerance
from tessera.testing.conformance import Case, conformance_cases
from tests.platforms.interpreted import Interpreted

# Kernels are interpreted if this is imported before them.
# isort: split
from tessera_triton.experts import Experts
from tessera_triton.facts import INTERPRETED, Launcher
from tessera_triton.lora import Lora
from tessera_triton.permutation import tiles_of
from tessera_triton.routing import Route

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
OPS = tuple(f"op/{name}/" for name in ("route", "experts", "moe", "lora"))


@pytest.mark.parametrize("case", [case for case in conformance_cases(PLATFORM) if case.id.startswith(OPS)], ids=str)
def test_it_conforms(case: Case) -> None:
    assert case.run().status == ("passed" if has_ordinary_gates(case) else "falls back")


def has_ordinary_gates(case: Case) -> bool:
    """Whether the kernel takes the experts of a case, if it is one of theirs; in a mixture they are a part."""
    _, op, number = case.id.split("/")
    specs = REFERENCE["experts"].sample_specs
    assert specs is not None
    return op != "experts" or not number.isdigit() or isinstance(list(specs())[int(number)].gate, GateSpec)


# ---- what the kit does not try


def experts_of(gate: str, *, first: int = 0, bias: bool = False) -> ExpertsSpec:
    return ExpertsSpec(
        LinearSpec(88, 40, "bfloat16", experts=3, bias=bias), GateSpec(44, "bfloat16", gate),
        LinearSpec(40, 44, "bfloat16", experts=3, bias=bias), 2, first,
    )  # fmt: skip


def experts_weights(spec: LinearSpec, make: OpInputs) -> dict[str, torch.Tensor]:
    weight = {"weight": make.normal(3, spec.n, spec.k, dtype=spec.dtype, scale=spec.k**-0.5)}
    return {**weight, "bias": make.normal(3, spec.n, dtype=spec.dtype)} if spec.bias else weight


@pytest.mark.parametrize(
    "spec",
    [
        experts_of("gelu"),
        experts_of("gelu_tanh", bias=True),
        experts_of("silu", first=2),  # the others are on another rank
    ],
    ids=str,
)
def test_gates_biases_and_experts_elsewhere(spec: ExpertsSpec) -> None:
    """More rows than a program places. A token may name an expert twice, and padding names any number."""
    make = OpInputs(90)
    x, weights = make.normal(90, 40, dtype="bfloat16"), make.normal(90, 2).abs()
    ids = make.integers(0, 6, 90, 2)
    ids[-1] = torch.tensor([-7, 1 << 30])
    gate_up, down = experts_weights(spec.gate_up, make), experts_weights(spec.down, make)
    found = Experts(INTERPRETED, Launcher()).bind(spec, None, None)(x, weights, ids, gate_up, down)
    assert_same(found, REFERENCE["experts"].reference(spec, x, weights, ids, gate_up, down), 3e-2)


@pytest.mark.parametrize("rows", [1, 130, 300])
def test_each_row_has_a_place_in_a_tile_of_its_owner(rows: int) -> None:
    owners = OpInputs(rows).integers(3, 12, rows)
    tiles = tiles_of(Launcher(), owners, 16, 5, first=4)
    assert len(tiles.rows) == 16 * len(tiles.owners) <= 16 * rows
    own = [row for row in range(rows) if 4 <= owners[row] < 9]
    assert sorted(row - 1 for row in tiles.rows.tolist() if row) == own
    for place, row in enumerate(tiles.rows.tolist()):
        assert not row or tiles.owners[place // 16] - 1 + 4 == owners[row - 1]


def test_equal_scores_are_routed_in_order() -> None:
    """All scores of a token are equal, as are those of many groups; and what is padding changes no other token."""
    spec = RouteSpec(60, 7, False, "sigmoid", True, 10, 3, 2, 2.5)
    logits, bias = torch.zeros(4, 60), torch.zeros(60)
    logits[1] = OpInputs(1).normal(60)
    logits[2] = float("nan")
    weights, ids = Route(INTERPRETED, Launcher()).bind(spec, None, None)(logits, bias)
    assert ids[0].tolist() == list(range(7))
    assert 0 <= int(ids.min()) <= int(ids.max()) < 60
    expected = REFERENCE["route"].reference(spec, logits, bias)
    for row in (0, 1, 3):
        assert_same((weights[row], ids[row]), (expected[0][row], expected[1][row]), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_adapters_of_long_inputs(dtype: str) -> None:
    """Programs share the inputs, layers end within a tile of outputs, and more tokens have one slot than a tile has."""
    spec = LoraSpec((150, 60), 1100, 24, 3, dtype)
    y, x, a, b, scales, slots = OpInputs(40).arguments("lora", spec)
    slots[:20] = 1
    found, expected = y.clone(), y.clone()
    Lora(INTERPRETED, Launcher()).bind(spec, None, Interpreted().open(0))(found, x, a, b, scales, slots)
    REFERENCE["lora"].reference(spec, expected, x, a, b, scales, slots)
    assert_same(found, expected, tolerance("lora", dtype))
    assert_same(found[slots < 0], y[slots < 0], 0.0)


def test_nothing_is_launched_without_tokens() -> None:
    launched = []

    class Counting(Launcher):
        def __call__(self, kernel, grid, *arguments, **options) -> None:
            launched.append(kernel)

    spec = LoraSpec((40,), 56, 8, 3, "float32")
    Lora(INTERPRETED, Counting()).bind(spec, None, Interpreted().open(0))(*OpInputs(0).arguments("lora", spec))
    experts = experts_of("silu")
    x, weights, ids = torch.empty(0, 40, dtype=torch.bfloat16), torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int32)
    make = OpInputs(0)
    given = experts_weights(experts.gate_up, make), experts_weights(experts.down, make)
    assert Experts(INTERPRETED, Counting()).bind(experts, None, None)(x, weights, ids, *given).shape == (0, 40)
    assert not launched
