"""Launches are recorded as Triton specializes them where a kernel runs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from tessera_triton import TARGETS
from tools.triton_launches import Recorded, Recorder
from tools.triton_targets import NotSpecializedError, complaints, require_specialized

ALIGNED, NEAR = ["tt.divisibility", 16], ["tt.pointer_range", 32]


@triton.jit(do_not_specialize=["rows"])
def some_kernel(x, y, n, k, rows, BLOCK: tl.constexpr):
    pass


def launched(target: str, *blocks: int, cached: bool = False, rows: int = 16) -> list[Recorded]:
    """One launch for each block. y is x without its first number."""
    x = torch.empty(64)
    launch = Recorder(TARGETS[target])
    launch.place = "op"
    launch.caches = [x] if cached else []
    for block in blocks:
        launch(some_kernel, (1,), x, x[1:], 1, 32, rows, BLOCK=block, num_warps=4)
    return list(launch.launches.values())


def test_numbers_are_specialized_unless_a_kernel_says_otherwise() -> None:
    for rows in (1, 16):
        (one,) = launched("sm_90", 64, rows=rows)
        assert one.signature == {
            "x": "*fp32", "y": "*fp32", "n": "constexpr", "k": "i32", "rows": "i32", "BLOCK": "constexpr"
        }  # fmt: skip
        assert one.constants == {(2,): 1, (5,): 64}
        assert one.attributes[(3,)] == [ALIGNED]
        assert not one.attributes.get((4,))


def test_pointers_say_what_is_known_of_their_memory() -> None:
    (one,) = launched("sm_90", 64)
    assert (one.attributes[(0,)], one.attributes[(1,)]) == ([ALIGNED], [])
    (one,) = launched("gfx942", 64)
    assert (one.attributes[(0,)], one.attributes[(1,)]) == ([ALIGNED, NEAR], [NEAR])
    (one,) = launched("gfx942", 64, cached=True)
    assert one.attributes[(0,)] == [ALIGNED]


def test_launches_at_one_place_are_told_apart() -> None:
    first, second = launched("sm_90", 64, 128, 64)
    assert (first.place, second.place) == ("some_kernel of op", "some_kernel of op, launch 2")


def test_constants_are_known_by_name() -> None:
    (one,) = launched("sm_90", 64)
    assert (one.constant("BLOCK"), one.constant("SPECIALIZES")) == (64, None)


def test_products_without_matrix_instructions_and_too_much_shared_memory_are_wrong() -> None:
    facts = TARGETS["sm_90"]
    fine = {"registers": 40, "spills": 0, "shared": 0, "matrix": 1, "setmaxnreg": False}
    found = {
        "_product of linear": {**fine, "matrix": 0},
        "_gate of gate": {**fine, "matrix": 0},
        "copied_tiles of attention": {"failed": "NotSpecializedError: there is no setmaxnreg"},
        "_expand of lora": {**fine, "shared": facts.shared_bytes + 1},
        "_shrink of lora": fine,
    }
    assert list(complaints(found, facts)) == [
        "sm_90: _product of linear has no matrix instruction",
        "sm_90: copied_tiles of attention: NotSpecializedError: there is no setmaxnreg",
        f"sm_90: _expand of lora takes {facts.shared_bytes + 1} bytes of shared memory of {facts.shared_bytes}",
    ]


EXCHANGED = "setmaxnreg.inc.sync.aligned.u32 232;"
GROUPS = "%a = ttng.warp_group_dot %q, %k, %b {inputPrecision = 0 : i32} : !x * !y -> tensor<{}x64xf32, #mma>\n"
ONE_WARP = "ttng.tc_gen5_mma %q, %k, %a, %false, %more {is_async} : !ttg.memdesc<128x128xbf16, #shared, #smem>\n"


@pytest.mark.parametrize(
    ("ptx", "ttgir", "why"),
    [
        (EXCHANGED, GROUPS.replace("{}", "64") * 2, None),
        (EXCHANGED, ONE_WARP, None),
        (EXCHANGED, GROUPS.replace("{}", "128") * 2, r"for \[128\] of 128 queries, not for 64"),
        (EXCHANGED, "", r"for \[\] of 128 queries, not for 64"),
        ("", GROUPS.replace("{}", "64") * 2, "no setmaxnreg"),
        ("", ONE_WARP, "no setmaxnreg"),
    ],
    ids=("halves", "one-warp", "whole", "no-products", "halves-not-exchanging", "one-warp-not-exchanging"),
)
def test_specialized_warps_exchange_registers_and_multiply_once(ptx: str, ttgir: str, why: str | None) -> None:
    with nullcontext() if why is None else pytest.raises(NotSpecializedError, match=why):
        require_specialized({"ptx": ptx, "ttgir": ttgir}, 128)
