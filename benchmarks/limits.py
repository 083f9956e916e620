"""The machine's limits for a model: how fast its memory can be read and its cores can multiply, and how many tokens a
second that allows. Runs as a peer does: a task in, a line of JSON for each batch size out."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.task import PLAIN, Task
from benchmarks.tuning import Tuning

QUANTIZED = {"int8": "int8", "int4": "int4"}
QUANTIZED_BYTES = {"int8": 1.0, "int4": 0.5}  # of a weight alone, without its scales
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
READ_BYTES = 2**30  # far above any cache
READS = 12
STREAMS = (1, 2, 4)
SIDE = 4096  # of the matrices that are multiplied
MATRICES = 8  # taken in turn, so that none is still in a cache
MULTIPLY_SECONDS = 0.4
CHAIN_ROUNDS = 10**7


def tuning(environment: Path, cores: list[int]) -> Tuning:
    """Threads are its own setting."""
    return Tuning()


@dataclass(frozen=True)
class Weights:
    """Elements of the matrices that one token needs. head: those that turn the last hidden state into logits."""

    total: int
    head: int


@dataclass(frozen=True)
class Machine:
    """Bytes read and operations done in a second."""

    read: float
    multiply: float


def weights(folder: Path) -> Weights:
    """From the headers of the folder's safetensors. An embedding that is not the head too is looked up, not read, and
    of a layer's experts only those count that one token takes."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    share = config["num_experts_per_tok"] / experts if experts > 1 else 1.0
    total, head = 0.0, 0
    for name, shape in _shapes(folder).items():
        size = math.prod(shape)
        if len(shape) > 1 and shape[0] == config["vocab_size"]:
            head = size
        elif len(shape) > 1:
            total += size * (share if ".experts." in name else 1.0)
    return Weights(round(total) + head, head)


def parameters(folder: Path) -> int:
    """Numbers in the folder's safetensors."""
    return sum(math.prod(shape) for shape in _shapes(folder).values())


def allowed(model: Weights, machine: Machine, *, item: float, batch: int, tokens: int) -> tuple[float, float]:
    """Most tokens a second in prefill of prompts of so many tokens and in decode, where a weight has so many bytes:
    every step reads the weights once, and every token is multiplied with them. What attention and the cache cost comes
    on top."""
    read = model.total * item / machine.read
    prompt = 2 * ((model.total - model.head) * tokens + model.head)
    prefill = batch * tokens / max(read, batch * prompt / machine.multiply)
    decode = batch / max(read, batch * 2 * model.total / machine.multiply)
    return prefill, decode


def _shapes(folder: Path) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


# ---- measuring ---------------------------------------------------------------


def read_rate(library: Any | None, threads: int) -> float:
    """Bytes a second, the best of many passes over a buffer."""
    with mmap.mmap(-1, READ_BYTES) as buffer:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        view = (ctypes.c_char * READ_BYTES).from_buffer(buffer)
        ctypes.memset(view, 1, READ_BYTES)
        if library is None:
            passes: list[Callable[[], object]] = [_torch_reader(view)]
        else:
            passes = [_reader(library, ctypes.addressof(view), threads, streams) for streams in STREAMS]
        best = min(_seconds(one_pass) for one_pass in passes for _ in range(READS))
        del view, passes
    return READ_BYTES / best


def _reader(library: Any, address: int, threads: int, streams: int) -> Callable[[], None]:
    share = READ_BYTES // threads // 256 * 256

    def one_pass() -> None:
        _in_threads(threads, lambda index: library.read_memory(address + index * share, share // 64, streams))

    return one_pass


def _torch_reader(view: Any) -> Callable[[], object]:
    import torch

    numbers = torch.frombuffer(view, dtype=torch.float32)
    return numbers.sum


def probe(library: Any | None, threads: int) -> dict[str, float]:
    """What the machine does at this moment, in about a second; empty where there is no C compiler."""
    if library is None:
        return {}
    rates = {name: kernel_rate(library, name, threads) for name in ("bfloat16", "float32", "int8")}
    shown = {f"{name} registers GOP/s": rate / 1e9 for name, rate in rates.items() if rate}
    return {"read GB/s": read_rate(library, threads) / 1e9, **shown}


def kernel_rate(library: Any | None, dtype: str, threads: int) -> float:
    """Operations a second of multiplying and adding in registers; 0 where there is no such kernel."""
    name = f"multiply_{dtype}"
    if library is None or not hasattr(library, name):
        return 0.0
    multiply = getattr(library, name)
    multiply.restype = ctypes.c_double
    multiply.argtypes = (ctypes.c_size_t, ctypes.POINTER(ctypes.c_float))
    done = [0.0] * threads

    def work(index: int) -> None:
        done[index] = multiply(CHAIN_ROUNDS, (ctypes.c_float * 32)(*[1e-3] * 32))

    seconds = min(_seconds(lambda: _in_threads(threads, work)) for _ in range(3))
    return sum(done) / seconds


def matmul_rates(dtype: str, rows: Sequence[int]) -> dict[int, float]:
    """Operations a second of torch's own product, by rows of the left matrix."""
    import torch

    kind = getattr(torch, dtype)
    matrices = [torch.randn(SIDE, SIDE).to(kind) for _ in range(MATRICES)]
    rates = {}
    for count in rows:
        left = torch.randn(count, SIDE).to(kind)
        best, until, turn = math.inf, time.perf_counter() + MULTIPLY_SECONDS, 0
        while turn < 2 * MATRICES or time.perf_counter() < until:
            began = time.perf_counter()
            torch.nn.functional.linear(left, matrices[turn % MATRICES])
            best = min(best, time.perf_counter() - began)
            turn += 1
        rates[count] = 2 * count * SIDE * SIDE / best
    return rates


def _in_threads(threads: int, work: Callable[[int], object]) -> None:
    """Foreign functions let go of the interpreter, so these do run beside each other."""
    started = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compiled(folder: Path) -> Any | None:
    """The kernels of limits.c, by the system's compiler; None where there is none."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    target = folder / "limits.so"
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(target))
    library.read_memory.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.read_memory.restype = ctypes.c_uint64
    return library


def main() -> None:
    task = Task.from_json(sys.argv[1])
    began = time.perf_counter()
    import torch

    torch.set_num_threads(task.threads)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        limits = probe(library, task.threads) or {"read GB/s": read_rate(None, task.threads) / 1e9}
    rates = {}
    if task.precision == PLAIN:
        rates = {dtype: matmul_rates(dtype, sorted({1, *task.batches, 256})) for dtype in {task.dtype, "float32"}}
        for dtype, by_rows in rates.items():
            limits |= {f"{dtype} torch GFLOP/s, {count} rows": rate / 1e9 for count, rate in by_rows.items()}
    kind = task.dtype if task.precision == PLAIN else "int8"
    multiply = max(1e9 * limits.get(f"{kind} registers GOP/s", 0.0), *rates.get(kind, {}).values(), 0.0)
    if multiply == 0:
        return  # no kernel multiplies so: what arithmetic allows is not known
    model, machine = weights(Path(task.model)), Machine(1e9 * limits["read GB/s"], multiply)
    item = QUANTIZED_BYTES.get(task.precision, ITEM_BYTES[task.dtype])
    took = time.perf_counter() - began
    for batch in task.batches:
        prefill, decode = allowed(model, machine, item=item, batch=batch, tokens=task.input)
        line = {
            "batch": batch,
            "values": {"prefill": prefill, "decode": decode},
            "load_s": round(took, 3),
            "version": f"torch {torch.__version__}" + ("" if library else ", no C compiler"),
            "limits": limits,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
