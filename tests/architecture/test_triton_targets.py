"""For which devices kernels are compiled on a day, what is read from their code, and when it became worse."""

from __future__ import annotations

from datetime import date, timedelta

from tools.triton_targets import TARGETS, merged, overlap, turn, worse


def test_six_days_compile_for_each_device_once() -> None:
    names = list(TARGETS)
    for begin in (date(2026, 11, 28), date(2027, 2, 27)):
        days = [turn(names, begin + timedelta(days=number)) for number in range(6)]
        assert sorted(name for day in days for name in day) == sorted(names)
        assert max(map(len, days)) - min(map(len, days)) <= 1


ALLOC = "%k = ttg.local_alloc : () -> !ttg.memdesc<{}x64x128xbf16, #shared, #smem, mutable> loc(#loc1)\n"
BARRIERS = "%b = ttg.local_alloc : () -> !ttg.memdesc<1x1xi64, #shared1, #smem, mutable> loc(#loc1)\n"
QUERIES = "%q = ttg.local_alloc %1 : (tensor<16x128xbf16, #blocked>) -> !ttg.memdesc<16x128xbf16, #shared, #smem>\n"
WAIT = "    %w = ttg.async_wait %k {{num = {} : i32}} loc(#loc2)\n"
LOOP = "  %r = scf.for %start = %first to %end step %c64 iter_args(%a = %b) -> (i32) : i32 {\n"


def code(buffers: int, *waits: int) -> str:
    """One loop, its waits, and the wait for nothing behind it, after a wait that is in no loop."""
    inside = "".join(WAIT.format(number) for number in waits)
    return QUERIES + ALLOC.format(buffers) * 2 + WAIT.format(9) + LOOP + inside + "  } loc(#loc3)\n" + WAIT.format(0)


def test_buffers_and_copies_ahead_are_read_from_the_code() -> None:
    assert overlap(code(2, 2)) == (2, 2)
    assert overlap(code(3, 0, 2) + code(2, 4)) == (2, 2)  # of two loops, the worse
    assert overlap(BARRIERS + code(2, 0)) == (2, 0)
    assert overlap(ALLOC.format(1) + code(3)) == (1, 0)
    assert overlap(ALLOC.format(1) + code(3), specialized=True) == (3, 0)
    assert overlap(LOOP + "  }\n" + code(2, 2)) == (2, 2)  # a loop that copies nothing
    assert overlap(QUERIES + LOOP) == (0, 0)


def test_fewer_buffers_and_more_spills_are_worse() -> None:
    before = {"a": {"buffers": 2, "ahead": 2, "spills": 0}, "b": {"spills": 8}, "gone": {"spills": 0}}
    assert not list(worse(before, before, "sm_90"))
    better = {"a": {"buffers": 3, "ahead": 4, "spills": 0}, "b": {"spills": 0}, "new": {"spills": 16}}
    assert not list(worse(better, before, "sm_90"))
    now = {"a": {"buffers": 1, "ahead": 0, "spills": 4}, "b": {"failed": "no register"}}
    assert list(worse(now, before, "sm_90")) == [
        "sm_90: a: buffers 1, and 2 in the table",
        "sm_90: a: ahead 0, and 2 in the table",
        "sm_90: a: spills 4, and 0 in the table",
    ]


def test_rows_of_some_kernels_are_replaced_in_their_place() -> None:
    old, new = {"spills": 8}, {"spills": 0}
    table = {"_a of x": old, "_b of x": old, "_b of y": old, "_c of x": old}
    assert merged(table, {"_b of x": new, "_b of z": new}, ["_b"]) == {
        "_a of x": old, "_b of x": new, "_c of x": old, "_b of z": new,
    }  # fmt: skip
    assert list(merged(table, {"_b of x": new}, ["_b"])) == ["_a of x", "_b of x", "_c of x"]
