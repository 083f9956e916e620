"""Attention computes what its definition says, on the host, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance import Case, ConformanceError, conformance_cases
from tessera_triton import Launcher, TritonAttention
from tessera_triton.attention import PagedPlan
from tessera_triton.facts import INTERPRETED, TARGETS
from tests.platforms.interpreted import Interpreted

# Tokens between rows hold NaN, which NumPy, unlike a device, reports where it compares and rounds it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
KINDS = ("attention/", "fused/", "cache/")
DAILY = (
    "attention/triton/decode-window-sinks-float32",
    "attention/triton/mixed-window-softcap-float32",
    "attention/triton/mixed-spaced-float32",
    "attention/triton/mixed-largest-heads-bfloat16",
    "attention/triton/far-apart",
    "attention/triton/float16-over-int8decode-padded",
    "attention/triton/bfloat16-over-fp8",
    "fused/triton/half-in-part-normed-float32",
    "fused/triton/pairs-bfloat16",
    "fused/triton/half-normed-bfloat16-over-int8",
    "fused/triton/pairs-normed-float32-over-fp8",
    "fused/triton/unturned-float16",
    "cache/triton/export-bfloat16-over-int8",
    "cache/triton/load-float16-over-fp8",
)


def _cases() -> Iterator[Any]:
    for case in conformance_cases(PLATFORM):
        if case.id.startswith(KINDS):
            yield pytest.param(case, id=case.id, marks=() if case.id in DAILY else pytest.mark.nightly)


@pytest.mark.parametrize("case", list(_cases()))
def test_it_conforms(case: Case) -> None:
    verdict = case.run()
    if case.id.endswith("far-apart"):
        assert verdict.status == "passed"  # a host needs no memory for it


class CutAddresses(TritonAttention):
    """Blocks are where their addresses are that are cut to 32 bits, counted in elements."""

    def plan(self, launch: Any, group: Any, buffers: Any) -> PagedPlan:
        plan = super().plan(launch, group, buffers)
        blocks = (1 << 32) // (plan.size * group.spec.num_kv_heads * group.spec.head_dim)
        return replace(plan, slots=plan.slots % (blocks * plan.size), table=plan.table % blocks)


class Cutting(Interpreted):
    def attention_backends(self) -> Sequence[TritonAttention]:
        return (CutAddresses(INTERPRETED),)


def test_the_kit_names_addresses_that_are_cut() -> None:
    (case,) = (case for case in conformance_cases(f"{__name__}:Cutting") if case.id.endswith("far-apart"))
    with pytest.raises(ConformanceError, match="its address needs more than 32 bits"):
        case.run()


class Counting(Launcher):
    """Notes what is launched, and over which grid."""

    def __init__(self) -> None:
        self.grids: dict[str, tuple[int, ...]] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.grids[kernel.fn.__name__] = grid
        super().__call__(kernel, grid, *arguments, **options)


SPLIT = AttentionCase(((1, 700), (1, 77)), window=500, sinks=True, padding=1, head_dim=16)
VERIFY = AttentionCase(((3, 520), (1, 40), (5, 130)), heads=3, kv_heads=1, head_dim=24)


@pytest.mark.parametrize(
    "case",
    [
        SPLIT,
        replace(VERIFY, softcap=0.7, dtype="bfloat16", stride=7, padding=3),
        replace(VERIFY, kv_dtype="int8", block_size=48),
    ],
    ids=("window-sinks-padded", "verify-softcap-spaced", "verify-over-int8"),
)
def test_keys_are_split_where_rows_are_few(case: AttentionCase) -> None:
    launch = Counting()
    made = AttentionTrial(TritonAttention(replace(INTERPRETED, processors=64), launch), case)
    for found, expected in zip(made.run(), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    for found, expected in zip(made.sums(), made.expected_sums(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert launch.grids["decode_rows"][2] > 1
    assert {"combine_splits", "decode_rows", "write_heads"} == launch.grids.keys()


class Kept:
    """Buffers of launches that are captured."""

    def get(self, name: str, shape: Any, dtype: str) -> Any:
        raise AssertionError("a plan needs no buffers")

    put = get


def test_a_plan_that_is_captured_depends_on_the_shape_alone() -> None:
    case = AttentionCase(((1, 30), (1, 9), (70, 70)), head_dim=16, padding=2)
    made = AttentionTrial(TritonAttention(INTERPRETED), case)
    made.run()
    launch, starts = made.launch(made.grants)
    eager = launch.plans[0]
    captured = made.backend.plan(launch, made.group, Kept())
    assert (eager.few, eager.others_start) == (2, 2)
    assert (captured.few, captured.others_start) == (0, 0)
    result = made.layer.attend(made.laid(launch, starts, made.queries), made.caches, captured)
    for start, (tokens, _), expected in zip(starts, case.rows, made.expected(), strict=True):
        assert difference(result[start : start + tokens].double(), expected, TOLERANCES["float32"]) is None
    assert not result[-2:].any()
    for found, expected in zip(made.sums(), made.expected_sums(), strict=True):
        assert difference(found.double(), expected, TOLERANCES["float32"]) is None


def test_rows_without_tokens_get_zeros() -> None:
    case = AttentionCase(((1, 30), (1, 9)), head_dim=16, padding=2)
    made = AttentionTrial(TritonAttention(INTERPRETED), case)
    made.run()
    launch, starts = made.launch(made.grants)
    assert launch.plans[0].fills
    assert not made.layer.attend(made.laid(launch, starts, made.queries), made.caches, launch.plans[0])[2:].any()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (AttentionCase(((1, 1),), head_dim=12), "heads of 12, not a multiple of 8 up to 256"),
        (AttentionCase(((1, 1),), head_dim=264), "heads of 264, not a multiple of 8 up to 256"),
        (AttentionCase(((1, 1),), head_dim=16, heads=71, kv_heads=1), "more than 64 query heads for a head of keys"),
        (AttentionCase(((1, 1),), head_dim=16, kv_dtype="fp8"), "sm_80 does not convert float8_e4m3fn"),
        (AttentionCase(((1, 1),), head_dim=16, kv_dtype="float16"), "keys and values in float16"),
        (AttentionCase(((1, 1),), head_dim=16, dtype="float64"), "no kernels for float64"),
    ],
    ids=str,
)
def test_it_says_what_it_does_not_take(case: AttentionCase, why: str) -> None:
    assert TritonAttention(TARGETS["sm_80"]).supports(case.spec()) == why
