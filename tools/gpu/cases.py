"""A share of a platform's conformance cases, in the environment that has the platform: `python -m tools.gpu.cases`.
Each result is on disk before the next case begins.

After a fault, such as an access out of bounds, a GPU answers its process with errors only. So this program ends with
LOST then, and whoever started it starts it again: it goes on behind the case at which it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tessera.testing.conformance import Case, Result, Target, cases_of, record, tried
from tools.gpu.ledger import BEGUN, Ledger

LOST = 3


def run(cases: Sequence[Case], ledger: Ledger, device_works: Callable[[], bool]) -> int:
    """Runs the cases that the ledger does not have. Returns LOST if the device is lost to this process, else 0."""
    ledger.died([case.id for case in cases])
    done = ledger.read()
    for case in cases:
        if case.id in done:
            continue
        ledger.add({"id": case.id, "status": BEGUN})
        result = tried(case)
        ledger.add(record(result))
        _tell(result)
        if result.status == "failed" and not device_works():
            return LOST
    return 0


def selected(cases: Sequence[Case], levels: Sequence[str], only: Sequence[str], but: Sequence[str]) -> list[Case]:
    """Of these levels, whose ids begin with one of `only` (all, if that is empty) and with none of `but`."""
    return [
        case
        for case in cases
        if case.level in levels and case.id.startswith(tuple(only) or "") and not case.id.startswith(tuple(but) or "-")
    ]


def with_scratch(target: Target, witness: Path) -> None:
    """Gives Triton the memory that its sanitizer keeps its records in. witness: a file that is made when it asks for
    some. Kernels of this library that want memory too bring an allocator of their own."""
    import torch
    import triton
    from triton.runtime import _allocation

    def allocate(size: int, alignment: int, stream: int | None) -> object:
        witness.touch()
        return torch.empty(size, dtype=torch.int8, device=target.device.target)

    triton.set_allocator(allocate)
    if hasattr(_allocation, "set_profile_allocator"):  # from Triton 3.6 on, records are in memory of their own
        _allocation.set_profile_allocator(allocate)


def _tell(result: Result) -> None:
    print(f"{result.seconds:7.2f} s  {result.status:<10} {result.line}".rstrip(" :"), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.cases", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--platform", required=True)
    parser.add_argument("--ledger", type=Path, help="where results are added; without it, the ids are listed")
    parser.add_argument("--levels", nargs="+", default=["bronze", "silver"])
    parser.add_argument("--only", nargs="*", default=[], help="how ids begin")
    parser.add_argument("--but", nargs="*", default=[], help="how ids that are left out begin")
    parser.add_argument("--share", default="0/1", help="2/8: the third of eight")
    parser.add_argument("--scratch", type=Path, help="give Triton's sanitizer memory; a file, made when it asks for it")
    given = parser.parse_args()
    target = Target.named(given.platform, shared=False)
    number, of = map(int, given.share.split("/"))
    cases = selected(cases_of(target, "gold"), given.levels, given.only, given.but)[number::of]
    if given.ledger is None:
        print(json.dumps([case.id for case in cases]))
        return 0
    if given.scratch is not None:
        with_scratch(target, given.scratch)

    def device_works() -> bool:
        try:
            target.device.synchronize()
        except Exception as error:  # noqa: BLE001  # whatever the device's library raises
            print(f"the device is lost to this process: {error}", flush=True)
            return False
        return True

    return run(cases, Ledger(given.ledger), device_works)


if __name__ == "__main__":
    sys.exit(main())
