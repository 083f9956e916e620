"""Compiles every kernel of platforms/triton for every device that it is meant for, without the device, and says what
the compiler made of it: `python -m tools.triton_targets`. It compares that with platforms/triton/targets.json, which
`--write` renews, with the page that shows it (tools/triton_page.py), unless kernels overlap less or spill more than
before. What is in the cache build/triton-cache is not compiled again.

The launches are those that the library makes for served sizes (tools/triton_launches.py). Each device is compiled for
in a process of its own, since a compiler may abort or hang."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from tessera_triton import TARGETS, DeviceFacts
from tools.triton_page import PAGE, page

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "platforms/triton/targets.json"
SECONDS = 900.0
"""The most that the kernels of one device may take to compile."""

Results = dict[str, dict[str, Any]]
"""What a device's kernels are compiled to, by kernel and place: the fields of Compiled, or "failed"."""

LATER = {"gfx1250": DeviceFacts("hip", "gfx1250", 32, 320 << 10, 256, fp8="float8_e4m3fn")}
"""Devices for which Triton compiles matrix products from 3.8 on only; with constraints.txt's, theirs have no matrix
instruction. No platform has kernels for them yet, so they are not in the table. processors: assumed."""

DEVICES: Mapping[str, DeviceFacts] = {**TARGETS, **LATER}

MATRIX = {"cuda": r"\b(?:HGMMA|HMMA|QGMMA|QMMA|IMMA|IGMMA|UTC\w*MMA|OMMA)\b", "hip": r"\bv_(?:mfma|wmma|swmmac)_"}
"""Instructions that multiply matrices, in the assembly."""

COPYING = ("decode_rows", "prefill_tiles", "copied_tiles", "encoder_tiles", "absorbed_rows", "absorbed_tiles")
"""Kernels that loop over keys, whose copies a pipeline should overlap with products."""

MULTIPLYING = (
    "_product", "_expert_rows", "_shrink", "_expand", "delta_chunks", "delta_rows", "space_rows", *COPYING,
)  # fmt: skip
"""Kernels that are slow without such instructions."""

EXACT = ", float32"
"""The end of places whose products no matrix instruction computes as exactly as it should."""


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a launch."""

    # of a thread; vector registers on AMD
    registers: int
    # bytes of a thread's stack
    spills: int
    # bytes of shared memory of a program
    shared: int
    # number of matrix instructions
    matrix: int
    # whether warps exchange registers, as specialized ones do
    setmaxnreg: bool = False
    # of COPYING, for how many turns' keys and values of a loop there is shared memory at once; 0 where they do not go
    # through shared memory ahead of their turn; None: of other kernels
    buffers: int | None = None
    # of COPYING, copies that may still be under way when a turn begins, by the loop where they are fewest; 0 also where
    # hardware copies, which counts in another way; None: of other kernels
    ahead: int | None = None


_COPIES = re.compile(r"ttg\.local_alloc *: *\(\) *-> *!ttg\.memdesc<(\d+)x\d+x\d+x(?:bf|f|i)\d")
_WAITS = re.compile(r"(?:ttg|amdg?)\.async_wait .*\{num = (\d+)")


_LOOP = re.compile(r"^( *)\S[^\n]*\bscf\.for\b.*?^\1\}", re.MULTILINE | re.DOTALL)


def overlap(ttgir: str, *, specialized: bool = False) -> tuple[int, int]:
    """The fields `buffers` and `ahead` of a kernel, from Triton's intermediate code. The queries of specialized warps
    lie there like keys, but once."""
    buffers = [int(number) for number in _COPIES.findall(ttgir)]
    if specialized:
        buffers = [number for number in buffers if number > 1]
    waits = [[int(number) for number in _WAITS.findall(loop[0])] for loop in _LOOP.finditer(ttgir)]
    return min(buffers, default=0), min((max(numbers) for numbers in waits if numbers), default=0)


class NotSpecializedError(Exception):
    pass


def require_specialized(asm: Mapping[str, str], queries: int) -> None:
    """Raises NotSpecializedError unless warps exchange registers and the queries are multiplied once: by one warp, or
    by two groups that have half of them each. Triton specializes where there are no halves too; then both groups do the
    same."""
    if "setmaxnreg" not in asm["ptx"]:
        raise NotSpecializedError("there is no setmaxnreg")
    rows = {int(number) for number in re.findall(r"warp_group_dot .*-> tensor<(\d+)x", asm["ttgir"])}
    if "tc_gen5_mma" not in asm["ttgir"] and rows != {queries // 2}:
        raise NotSpecializedError(f"groups multiply for {sorted(rows)} of {queries} queries, not for {queries // 2}")


def compiled(launch: Any, facts: Any) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    target = GPUTarget(facts.backend, facts.arch, facts.warp_size)
    result = triton.compile(source, target=target, options=launch.options)
    shared = int(result.metadata.shared)
    if launch.constant("SPECIALIZES"):
        require_specialized(result.asm, launch.constant("BLOCK_M"))
    found = _from_code(result.asm, shared, facts, Path(triton.__file__).parent)
    if launch.kernel.__name__ in COPYING:
        buffers, ahead = overlap(result.asm["ttgir"], specialized=bool(launch.constant("SPECIALIZES")))
        found = replace(found, buffers=buffers, ahead=ahead)
    return found


def _from_code(asm: Mapping[str, Any], shared: int, facts: Any, package: Path) -> Compiled:
    if facts.backend == "hip":
        text = asm["amdgcn"]
        said = re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s*(\d+)", text)
        numbers = {key: int(value) for key, value in said}
        stack = numbers["private_segment_fixed_size"]
        return Compiled(numbers["vgpr_count"], stack, shared, len(re.findall(MATRIX["hip"], text)))
    return _from_cubin(asm["cubin"], asm["ptx"], shared, package)


def _from_cubin(cubin: bytes, ptx: str, shared: int, package: Path) -> Compiled:
    tools = package / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([tools / name, option, file.name], check=True, capture_output=True, text=True).stdout
            for name, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers, stack = (int(re.findall(rf"\b{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
    return Compiled(registers, stack, shared, len(re.findall(MATRIX["cuda"], code)), "setmaxnreg" in ptx)


# ---- one process per device


def main_of_target(name: str, kernels: Sequence[str]) -> None:
    """Prints a JSON line before each kernel and one after it. kernels: only these, if there are some."""
    from tools.triton_launches import recorded

    facts = DEVICES[name]
    for one in recorded(facts):
        if kernels and one.kernel.__name__ not in kernels:
            continue
        print(json.dumps({"begin": one.place}), flush=True)
        try:
            found = {name: value for name, value in vars(compiled(one, facts)).items() if value is not None}
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            found = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"}
        print(json.dumps({"end": one.place, **found}), flush=True)


def compile_for(name: str, kernels: Sequence[str]) -> Results:
    """What main_of_target() found, by kernel and place. A kernel at which the process ended, or that was not done in
    time, has "failed"."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(ROOT / "build/triton-cache")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tools.triton_targets", "--one", name]
    command += [part for kernel in kernels for part in ("--kernel", kernel)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    found: Results = {}
    try:
        out, errors = process.communicate(timeout=SECONDS)
        failed = f"the compiler ended with code {process.returncode}: {errors.strip()[-300:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        failed = f"the device's kernels were not compiled within {SECONDS:.0f} s"
    open_place = ""
    for line in out.splitlines():
        said = json.loads(line)
        if "begin" in said:
            open_place = said["begin"]
        else:
            found[said.pop("end")] = said
            open_place = ""
    if open_place or process.returncode:
        found[open_place or "all kernels"] = {"failed": failed}
    return found


# ---- judging


def complaints(results: Results, facts: Any) -> Iterator[str]:
    """What is wrong with a device's kernels, apart from the table: failures, more shared memory than there is, and
    products without matrix instructions."""
    for where, said in results.items():
        if "failed" in said:
            yield f"{facts.name}: {where}: {said['failed']}"
        elif said["shared"] > facts.shared_bytes:
            yield f"{facts.name}: {where} takes {said['shared']} bytes of shared memory of {facts.shared_bytes}"
        elif where.startswith(MULTIPLYING) and not where.endswith(EXACT) and not said["matrix"]:
            yield f"{facts.name}: {where} has no matrix instruction"


def differences(results: Results, committed: Results, name: str) -> Iterator[str]:
    """How a device's kernels differ from the table."""
    for where in sorted(results.keys() | committed.keys()):
        if results.get(where) != committed.get(where):
            yield f"{name}: {where}: {results.get(where)}, and {committed.get(where)} in the table"


def worse(results: Results, committed: Results, name: str) -> Iterator[str]:
    """Where a device's kernels overlap less, or spill more, than in the table."""
    for where in results.keys() & committed.keys():
        now, before = results[where], committed[where]
        for field, sign in (("buffers", 1), ("ahead", 1), ("spills", -1)):
            if field in now and field in before and sign * now[field] < sign * before[field]:
                yield f"{name}: {where}: {field} {now[field]}, and {before[field]} in the table"


def turn(names: Sequence[str], day: date) -> Sequence[str]:
    """A sixth of the devices, so that six days one after the other have all of them."""
    return names[day.toordinal() % 6 :: 6]


def of_kernels(results: Results, kernels: Sequence[str]) -> Results:
    """Only those of some kernels; all if there are none."""
    return {where: said for where, said in results.items() if not kernels or where.partition(" of ")[0] in kernels}


def merged(committed: Results, results: Results, kernels: Sequence[str]) -> Results:
    """A device's rows with those of some kernels replaced, in the order of the table."""
    stale = of_kernels(committed, kernels).keys() - results.keys()
    return {where: said for where, said in (committed | results).items() if where not in stale}


def as_text(table: Mapping[str, Results]) -> str:
    """JSON with a line for each kernel, so that changes are easy to read."""
    devices = (
        f"{json.dumps(name)}: {{\n" + ",\n".join(f"  {json.dumps(at)}: {json.dumps(of[at])}" for at in of) + "\n }"
        for name, of in table.items()
    )
    return "{\n " + ",\n ".join(devices) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the committed table, and the page")
    parser.add_argument("--page", action="store_true", help="only write the page of the committed table")
    parser.add_argument("--target", action="append", help="only this device, such as sm_90; may be repeated")
    parser.add_argument("--kernel", action="append", default=[], help="only this one, such as decode_rows; likewise")
    parser.add_argument("--accept-worse", action="store_true", help="with --write, also where kernels became worse")
    parser.add_argument("--day", type=date.fromisoformat, help="only the sixth of the devices whose day it is")
    parser.add_argument("--no-table", action="store_true", help="compile, and compare with nothing")
    parser.add_argument("--later", action="store_true", help="also devices that need a newer Triton")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        main_of_target(asked.one, asked.kernel)
        return 0
    committed: dict[str, Results] = json.loads(TABLE.read_text(encoding="utf-8"))
    if asked.page:
        PAGE.write_text(page(committed), encoding="utf-8")
        return 0
    known = DEVICES if asked.later else TARGETS
    made, wrong = dict[str, Results](), list[str]()
    begin = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = asked.target or (turn(list(known), asked.day) if asked.day else known)
        running = {pool.submit(compile_for, name, asked.kernel): name for name in names}
        for done in as_completed(running):
            name, found = running[done], done.result()
            made[name] = found if not asked.kernel else merged(committed.get(name, {}), found, asked.kernel)
            own = list(complaints(found, DEVICES[name]))
            before = of_kernels(committed.get(name, {}), asked.kernel)
            if not own and not asked.write and not asked.no_table:
                own = list(differences(found, before, name))
            if asked.write and not asked.accept_worse:
                own += worse(found, before, name)
            spilling = sum(said.get("spills", 0) > 0 for said in found.values())
            print(
                f"{name}: {len(found)} kernels, {spilling} of them spill registers, {len(own)} wrong, after "
                f"{time.monotonic() - begin:.0f} s", *own, sep="\n", flush=True,
            )  # fmt: skip
            wrong += own
    if asked.write and not wrong:
        table = committed | made
        table = {name: table[name] for name in TARGETS if name in table}
        TABLE.write_text(as_text(table), encoding="utf-8")
        PAGE.write_text(page(table), encoding="utf-8")
    print(f"{sum(map(len, made.values()))} kernels compiled, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
