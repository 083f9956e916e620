"""The machine's limits for a model: how fast it can read memory and multiply, and how many tokens per second that
allows."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import mmap
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.task import FILE, PLAIN, Task
from tessera.gguf.file import GgufFile
from tessera.platform.attention import ITEMSIZE

QUANTIZED_BYTES = {"int8": 1.0, "int4": 0.5}  # of a weight alone, without its scales
READS_MEMORY = "read GB/s"
MULTIPLIES = "registers GOP/s"
READ_BYTES = 2**30  # far larger than any cache
READS = 6
STREAMS = (1, 2, 4)
AHEAD = (0, 6, 12, 20, 32)  # lines of 64 bytes to prefetch ahead; 0 leaves it to the processor
CHAIN_ROUNDS = 10**7


@dataclass(frozen=True)
class Weights:
    """Elements of the matrices that one token needs. last: those needed only for a prompt's last token: the head's,
    which turns its hidden state into logits, and the last layer's except for keys and values."""

    total: int
    last: int


@dataclass(frozen=True)
class Machine:
    """Bytes read and operations done per second."""

    read: float
    multiply: float


def weights(folder: Path) -> Weights:
    """Reads the headers of the folder's safetensors. An embedding that is not also the head is looked up, not read. Of
    a layer's experts, only those that one token uses count."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    share = config["num_experts_per_tok"] / experts if experts > 1 else 1.0
    layers, head, last = 0.0, 0, 0.0
    end = f".layers.{config['num_hidden_layers'] - 1}."
    for name, shape in _shapes(folder).items():
        size = math.prod(shape) * (share if ".experts." in name else 1.0)
        if len(shape) > 1 and shape[0] == config["vocab_size"]:
            head = round(size)
        elif len(shape) > 1:
            layers += size
            last += size if end in name and ".k_proj." not in name and ".v_proj." not in name else 0.0
    return Weights(round(layers) + head, round(last) + head)


def parameters(model: Path) -> int:
    """The number of elements in the folder's safetensors, or in a GGUF file."""
    shapes = _shapes(model).values() if model.is_dir() else (one.shape for one in GgufFile.open(model).tensors.values())
    return sum(math.prod(shape) for shape in shapes)


def allowed(model: Weights, machine: Machine, *, item: float, batch: int, tokens: int) -> tuple[float, float]:
    """The maximum tokens per second in prefill (of prompts of `tokens` tokens) and decode, with `item` bytes per
    weight: every step reads the weights once, and every token is multiplied with those it needs. Attention and the
    cache cost extra."""
    read = model.total * item / machine.read
    prompt = 2 * ((model.total - model.last) * tokens + model.last)
    prefill = batch * tokens / max(read, batch * prompt / machine.multiply)
    decode = batch / max(read, batch * 2 * model.total / machine.multiply)
    return prefill, decode


def bound(task: Task, batch: int, rates: Mapping[str, float]) -> dict[str, float]:
    """The limits in the task's precision on a machine with probe()'s results `rates`; empty if not known. output: for
    clients in a closed loop, first all prompts and then all answers."""
    kind = task.dtype if task.precision == PLAIN else "int8"
    multiply = rates.get(f"{kind} {MULTIPLIES}")
    if multiply is None or task.precision == FILE:
        return {}
    machine = Machine(1e9 * rates[READS_MEMORY], 1e9 * multiply)
    item = QUANTIZED_BYTES.get(task.precision, ITEMSIZE[task.dtype])
    prefill, decode = allowed(weights(Path(task.model)), machine, item=item, batch=batch, tokens=task.input)
    return {"prefill": prefill, "decode": decode, "output": task.output / (task.input / prefill + task.output / decode)}


def _shapes(folder: Path) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


# ---- measuring ---------------------------------------------------------------


def read_rate(library: Any | None, threads: int) -> float:
    """Bytes per second; the best of many passes over a buffer."""
    with mmap.mmap(-1, READ_BYTES) as buffer:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        view = (ctypes.c_char * READ_BYTES).from_buffer(buffer)
        ctypes.memset(view, 1, READ_BYTES)
        if library is None:
            passes: list[Callable[[], object]] = [_torch_reader(view)]
        else:
            address = ctypes.addressof(view)
            passes = [_reader(library, address, threads, *kind) for kind in itertools.product(STREAMS, AHEAD)]
        best = min(_seconds(one_pass) for one_pass in passes for _ in range(READS))
        del view, passes
    return READ_BYTES / best


def _reader(library: Any, address: int, threads: int, streams: int, ahead: int) -> Callable[[], None]:
    share = READ_BYTES // threads // 256 * 256

    def one_pass() -> None:
        _in_threads(threads, lambda index: library.read_memory(address + index * share, share // 64, streams, ahead))

    return one_pass


def _torch_reader(view: Any) -> Callable[[], object]:
    import torch

    numbers = torch.frombuffer(view, dtype=torch.float32)
    return numbers.sum


def probe(library: Any | None, threads: int) -> dict[str, float]:
    """The machine's current rates, measured in about a second; empty if there is no C compiler."""
    if library is None:
        return {}
    rates = {name: kernel_rate(library, name, threads) for name in ("bfloat16", "float32", "int8")}
    shown = {f"{name} {MULTIPLIES}": rate / 1e9 for name, rate in rates.items() if rate}
    return {READS_MEMORY: read_rate(library, threads) / 1e9, **shown}


def kernel_rate(library: Any | None, dtype: str, threads: int) -> float:
    """Operations per second when multiplying and adding in registers; 0 if there is no such kernel."""
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


def _in_threads(threads: int, work: Callable[[int], object]) -> None:
    """Runs work in threads. Foreign functions release the GIL, so they run in parallel."""
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
    """The kernels of limits.c, built with the system's compiler; None if there is none."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    target = folder / "limits.so"
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(target))
    library.read_memory.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
    library.read_memory.restype = ctypes.c_uint64
    return library
