"""Attention computes what its definition says, on the host, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

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
    # A soft cap takes the exponent of a large score, which is infinite there too, and as meant.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
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
    """Notes what is launched, and over which grid and with which options last."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: dict[str, tuple[int, ...]] = {}
        self.options: dict[str, dict[str, Any]] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.grids[kernel.fn.__name__] = grid
        self.options[kernel.fn.__name__] = options
        super().__call__(kernel, grid, *arguments, **options)


WINDOWED = AttentionCase(((1, 700), (1, 77)), window=500, sinks=True, padding=1, head_dim=16)
VERIFY = AttentionCase(((3, 520), (1, 40), (5, 130)), heads=3, kv_heads=1, head_dim=24)
SKEWED = AttentionCase(((1, 1410), (1, 3), (1, 130), (1, 1), (1, 129)), head_dim=16, padding=2)


@pytest.mark.parametrize(
    "case",
    [
        WINDOWED,
        SKEWED,
        replace(SKEWED, block_size=64, dtype="bfloat16", kv_dtype="fp8", sinks=True),
        replace(VERIFY, softcap=0.7, dtype="bfloat16", stride=7, padding=3),
        replace(VERIFY, kv_dtype="int8", block_size=48),
    ],
    ids=("window-sinks-padded", "skewed", "skewed-over-fp8", "verify-softcap-spaced", "verify-over-int8"),
)
def test_long_rows_are_divided(case: AttentionCase) -> None:
    launch = Counting()
    made = AttentionTrial(TritonAttention(replace(INTERPRETED, processors=16), launch), case)
    for found, expected in zip(made.run(), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    for found, expected in zip(made.sums(), made.expected_sums(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert {"combine_parts", "decode_rows", "write_heads"} == launch.grids.keys()


def test_rows_that_are_not_divided_are_not_combined() -> None:
    case = AttentionCase(((1, 300), (1, 290), (1, 200)), head_dim=16)
    launch = Counting()
    made = AttentionTrial(TritonAttention(replace(INTERPRETED, processors=1), launch), case)
    made.run()
    assert {"decode_rows", "write_heads"} == launch.grids.keys()


COPIED = AttentionCase(((1, 50), (19, 19), (66, 130), (4, 133)), 64, 2, 1, 16, dtype="bfloat16")


@pytest.mark.parametrize(
    "case",
    [
        COPIED,
        replace(COPIED, window=9, sinks=True, stride=70, padding=3, dtype="float16"),
        replace(COPIED, softcap=0.7, block_size=128, kv_heads=2),
        replace(COPIED, rows=((5, 5), (66, 130)), head_dim=256, block_size=32, heads=1),
    ],
    ids=("plain", "window-sinks-spaced", "softcap-large-blocks", "wide-heads"),
)
@pytest.mark.parametrize(("queries", "copies"), [(64, "plain"), (128, "plain"), (128, "specialized")])
def test_hardware_copies_keys_where_it_can(case: AttentionCase, queries: int, copies: str) -> None:
    """Every slot that was not written holds NaN, those behind the last key of a tile too."""
    processors = 1 if queries == 128 else 64
    launch = Counting()
    backend = TritonAttention(replace(INTERPRETED, processors=processors), launch, copies=copies)
    made = AttentionTrial(backend, case)
    launch.grids.clear()
    for found, expected in zip((*made.run(), *made.sums()), (*made.expected(), *made.expected_sums()), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert "copied_tiles" in launch.grids
    assert "prefill_tiles" not in launch.grids
    assert launch.options["copied_tiles"]["BLOCK_M"] == queries
    assert launch.options["copied_tiles"]["SPECIALIZES"] == (copies == "specialized")


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("sm_90", replace(COPIED, dtype="float32")),
        ("sm_90", replace(COPIED, kv_dtype="int8")),
        ("sm_90", replace(COPIED, kv_dtype="fp8")),
        ("sm_90", replace(COPIED, head_dim=24)),
        ("sm_90", replace(COPIED, head_dim=8)),
        ("sm_80", COPIED),
        ("sm_120", COPIED),
        ("gfx942", COPIED),
    ],
    ids=("float32", "int8", "fp8", "heads-of-24", "heads-of-8", "sm_80", "sm_120", "gfx942"),
)
def test_other_layers_load_keys(target: str, case: AttentionCase) -> None:
    assert AttentionTrial(TritonAttention(TARGETS[target]), case).layer.copying is None


def test_copies_can_be_switched_off() -> None:
    assert AttentionTrial(TritonAttention(INTERPRETED, copies="off"), COPIED).layer.copying is None


def test_small_blocks_are_loaded() -> None:
    launch = Counting()
    made = AttentionTrial(TritonAttention(INTERPRETED, launch), replace(COPIED, block_size=16, rows=((66, 66),)))
    launch.grids.clear()
    made.run()
    assert {"prefill_tiles", "write_heads"} == launch.grids.keys()


def test_descriptors_want_aligned_queries_and_whole_tiles() -> None:
    copying = AttentionTrial(TritonAttention(INTERPRETED), COPIED).layer.copying
    fused = torch.empty(70, 6 * 16, dtype=torch.bfloat16)
    inside, shifted = fused[:, 16:48].view(70, 2, 16), fused[:, 4:36].view(70, 2, 16)
    narrow = torch.empty(70, 36, dtype=torch.bfloat16)[:, :32].view(70, 2, 16)
    turned = torch.empty(2, 70, 16, dtype=torch.bfloat16).transpose(0, 1)
    assert [copying.takes(q, 64) for q in (inside, shifted, narrow, turned)] == [True, False, False, False]
    assert [copying.takes(inside, size) for size in (32, 64, 96, 128)] == [False, True, False, True]


class Faulty(Counting):
    """Where the tiles have so many queries, the kernel is compiled wrongly, or not at all."""

    def __init__(self, queries: int, error: Exception | None) -> None:
        super().__init__()
        self.queries, self.error = queries, error

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        faulty = kernel.fn.__name__ == "copied_tiles" and options["BLOCK_M"] == self.queries
        if faulty and self.error is not None:
            raise self.error
        super().__call__(kernel, grid, *arguments, **options)
        if faulty:
            arguments[kernel.arg_names.index("out")][3, 1].fill_(float("nan"))


@pytest.mark.parametrize("queries", [64, 128])
@pytest.mark.parametrize(
    ("error", "why"),
    [(None, "it gives other numbers"), (RuntimeError("PassManager::run failed\nmore"), "PassManager::run failed")],
    ids=("wrong", "not-compiled"),
)
def test_copies_that_are_compiled_wrongly_are_not_used(
    queries: int, error: Exception | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = TritonAttention(INTERPRETED, Faulty(queries, error))
    layers = [AttentionTrial(backend, replace(COPIED, kv_heads=number)).layer for number in (1, 1, 2)]
    assert [layer.copying for layer in layers] == [None] * 3
    assert [line.endswith(f": {why}") for line in caplog.messages] == [True, True]  # of each kind of layer one


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
