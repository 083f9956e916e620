"""Compiles every kernel of platforms/triton for every device that it is meant for, without the device, and says what
the compiler made of it: `python -m tools.triton_targets`. It compares that with platforms/triton/targets.json, which
`--write` renews.

The launches are those that the library makes for served sizes, recorded with tensors that have no memory. Each device
is compiled for in a process of its own, since a compiler may abort or hang."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "platforms/triton/targets.json"
SECONDS = 60.0
"""The most that one kernel may take to compile."""

MATRIX = {"cuda": r"\b(?:HGMMA|HMMA|QGMMA|QMMA|IMMA|IGMMA|UTC\w*MMA|OMMA)\b", "hip": r"\bv_(?:mfma|wmma|swmmac)_"}
"""Instructions that multiply matrices, in the assembly."""


@dataclass(frozen=True)
class Compiled:
    """registers: of a thread, vector registers on AMD. spills: bytes, or registers on AMD. shared: bytes. matrix:
    number of matrix instructions. setmaxnreg: whether warps exchange registers, as specialized ones do."""

    registers: int
    spills: int
    shared: int
    matrix: int
    setmaxnreg: bool = False


@dataclass(frozen=True)
class Recorded:
    """One launch: what Triton compiles it by. place: the op, and what distinguishes the launch."""

    place: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[int, ...]
    options: dict[str, int]


def recorded(facts: Any) -> list[Recorded]:
    """The launches of each op at served sizes, each kind once."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tessera.ops import REFERENCE
    from tessera.platform.collectives import Alone
    from tessera.platform.explain import op_place
    from tessera.platform.ops import BoundOps, replace
    from tessera.testing.op_inputs import OpInputs
    from tessera.testing.reference import host_device
    from tessera_triton import Launcher, TritonAttention, kernels
    from tessera_triton.served import served, served_attention

    found: dict[tuple[Any, ...], Recorded] = {}
    place = ""

    class Recorder(Launcher):
        def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
            one = _launch(place, kernel, arguments, options, torch)
            found.setdefault((kernel, *map(str, (one.signature, one.constants, one.divisible, one.options))), one)

    own = kernels(facts, Recorder())
    table = replace(REFERENCE, **own)
    for name, spec, tokens, dtype in served(facts):
        ops = BoundOps(table, host_device(), {"tensor": Alone()})
        if own[name].supports(spec) is not None:
            continue
        place = f"{name} ({op_place(spec)}, {tokens} tokens)"
        with FakeTensorMode(allow_non_fake_inputs=True):
            arguments = OpInputs(tokens, 0, ops, dtype).of(table[name], spec)
            ops.bind(name, spec)(*arguments)
    for attended in served_attention(facts):
        place = attended.name
        _attend(attended, TritonAttention(facts, Recorder()))
    return list(found.values())


def _attend(attended: Any, backend: Any) -> None:
    """Calls a layer as a model does, and its parts."""
    import torch

    from tessera.ops.tensors import torch_dtype
    from tessera.testing.attention import AttentionCase, AttentionTrial

    spec = attended.layer
    if backend.supports(spec) is not None:
        return
    cache = spec.cache
    kept = "" if cache.quant is None else {"int8": "int8"}.get(cache.dtype, "fp8")
    size = backend.constraints(spec).block_sizes[0]
    case = AttentionCase(
        attended.rows, size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window, spec.softcap, spec.sinks,
        dtype=spec.dtype, kv_dtype=kept,
    )  # fmt: skip
    made = AttentionTrial(backend, case)
    launch, _ = made.launch(made.grants)
    heads, dtype = spec.num_heads + 2 * spec.num_kv_heads, torch_dtype(spec.dtype)
    norm = torch.empty(spec.head_dim, dtype=dtype)
    weights = {**made.weights, "q_norm": norm, "k_norm": norm, "cos_sin": torch.empty(8192, spec.head_dim)}
    layer = backend.bind(spec, weights, made.ops, made.ops.device)
    layer.fused(torch.empty(launch.key.tokens, heads * spec.head_dim, dtype=dtype), launch.positions, made.caches,
                launch.plans[0])  # fmt: skip
    k = torch.empty(launch.key.tokens, spec.num_kv_heads, spec.head_dim, dtype=dtype)
    layer.write(k, k, made.caches, launch.plans[0])


def _launch(place: str, kernel: Any, arguments: Sequence[Any], options: dict[str, Any], torch: Any) -> Recorded:
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = []
    given = dict(zip(kernel.arg_names, arguments, strict=False))
    given |= {name: options.pop(name) for name in list(options) if name in kernel.arg_names}
    for number, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{_TYPES[str(value.dtype).removeprefix('torch.')]}"
            divisible.append(number)
        elif isinstance(value, int):
            signature[parameter.name] = "i32" if abs(value) < 1 << 31 else "i64"
            if value % 16 == 0:
                divisible.append(number)
        else:
            signature[parameter.name] = "fp32"
    return Recorded(place, kernel, signature, constants, tuple(divisible), options)


_TYPES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int8": "i8", "uint8": "u8", "int32": "i32",
    "int64": "i64", "bool": "i1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8",
}  # fmt: skip


def compiled(one: Recorded, facts: Any) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    attributes = {(number,): [["tt.divisibility", 16]] for number in one.divisible}
    source = ASTSource(fn=one.kernel, signature=one.signature, constexprs=one.constants, attrs=attributes)
    target = GPUTarget(facts.backend, facts.arch, facts.warp_size)
    result = triton.compile(source, target=target, options={"enable_fp_fusion": True, **one.options})
    shared = int(result.metadata.shared)
    if facts.backend == "hip":
        text = result.asm["amdgcn"]
        numbers = {key: int(value) for key, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", text)}
        return Compiled(
            numbers["vgpr_count"], numbers["vgpr_spill_count"], shared, len(re.findall(MATRIX["hip"], text))
        )
    return _from_cubin(result.asm["cubin"], result.asm["ptx"], shared, Path(triton.__file__).parent)


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


def main_of_target(name: str) -> None:
    """Prints a JSON line before each kernel and one after it."""
    from tessera_triton import TARGETS

    facts = TARGETS[name]
    for one in recorded(facts):
        where = f"{one.kernel.__name__} of {one.place}"
        print(json.dumps({"begin": where}), flush=True)
        try:
            found = vars(compiled(one, facts))
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            found = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"}
        print(json.dumps({"end": where, **found}), flush=True)


def compile_for(name: str) -> dict[str, dict[str, Any]]:
    """What main_of_target() found, by kernel and place. A kernel at which the process ended, or that took too long, has
    "failed"."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(ROOT / "build/triton-cache")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tools.triton_targets", "--one", name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    found: dict[str, dict[str, Any]] = {}
    try:
        out, errors = process.communicate(timeout=SECONDS * 10)
        failed = f"the compiler ended with code {process.returncode}: {errors.strip()[-300:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        failed = f"not done within {SECONDS * 10:.0f} s"
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


def complaints(found: dict[str, dict[str, Any]], facts: Any) -> Iterator[str]:
    """What is wrong with a device's kernels, apart from the table: failures, and more shared memory than there is."""
    for where, said in found.items():
        if "failed" in said:
            yield f"{facts.name}: {where}: {said['failed']}"
        elif said["shared"] > facts.shared_bytes:
            yield f"{facts.name}: {where} takes {said['shared']} bytes of shared memory of {facts.shared_bytes}"


def differences(found: dict[str, dict[str, Any]], committed: dict[str, dict[str, Any]], name: str) -> Iterator[str]:
    """How a device's kernels differ from the table."""
    for where in sorted(found.keys() | committed.keys()):
        if found.get(where) != committed.get(where):
            yield f"{name}: {where}: {found.get(where)}, and {committed.get(where)} in the table"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the committed table")
    parser.add_argument("--target", action="append", help="only this device, such as sm_90; may be repeated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        main_of_target(asked.one)
        return 0
    from tessera_triton import TARGETS

    committed: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table, wrong = dict(committed), list[str]()
    chosen = asked.target or list(TARGETS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(chosen, pool.map(compile_for, chosen), strict=True))
    for name, found in made.items():
        table[name] = found
        wrong += complaints(found, TARGETS[name])
        if not asked.write:
            wrong += differences(found, committed.get(name, {}), name)
        for where, said in found.items():
            print(f"{name:8} {where:60} {said}")
    print(*wrong, f"{sum(map(len, made.values()))} kernels compiled, {len(wrong)} wrong", sep="\n")
    if asked.write and not wrong:
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
