"""Measures the CPU platform's products alone, next to the machine's peak in registers, a plain kernel with one tile
shape and oneDNN's, and its sampling next to core's reference: `python -m benchmarks.kernels`. The weights rotate, so
that none are still in a cache; logits may be, as in a step."""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import limits
from tessera.platform import BoundOps, Quantized, SampleSpec, SamplingRows, Scheme
from tessera.testing import REFERENCE, candidates
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.products import NativeProducts, OneDnnProducts
from tessera_cpu.quantized import QuantizedProducts, served

SHAPES = {
    "qwen2.5-0.5b": ((1152, 896), (896, 896), (9728, 896), (896, 4864), (151936, 896)),
    "llama3.2-1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048)),
    "llama3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
}
ROWS = (1, 4, 8, 16, 32, 64, 256)
VOCABULARY = 151936
SAMPLED_ROWS = (1, 32)
SAMPLING = {
    "greedy": SampleSpec(VOCABULARY, greedy=True),
    "temperature": SampleSpec(VOCABULARY),
    "top_p": SampleSpec(VOCABULARY, filters=True),
}
COLD_BYTES = 3e8  # of weights to rotate through
SECONDS = 0.25  # for measuring one place
ROUNDS = 3
BF16, INT8 = torch.bfloat16, torch.int8
PEAKS = {"bf16_peak": "bfloat16", "int8_peak": "int8"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, action="append", help="may be repeated; default: all")
    parser.add_argument("--rows", type=int, action="append", help="may be repeated")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="where to write the figures too")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    library = native.library()
    if library is None or not all(map(shutil.which, ("gcc", "g++"))):
        print("The native kernels, gcc or g++ are missing here.", file=sys.stderr)
        return 1
    native.use_threads(library, asked.threads)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        plain, registers = _plain(Path(folder)), limits.compiled(Path(folder))
        print(
            f"{native.used()}, {asked.threads} threads; GFLOP/s or GOP/s, (GB/s of weights), share of the peak in"
            f" registers; median of {ROUNDS} rounds"
        )
        print("      n      k  rows          bf16 ours  share  plain oneDNN          int8 ours  share  plain oneDNN")
        for model in asked.model or SHAPES:
            for n, k in SHAPES[model]:
                peaks = {name: 1e-9 * limits.kernel_rate(registers, PEAKS[name], asked.threads) for name in PEAKS}
                for measured in _products(library, plain, n, k, asked.rows or ROWS):
                    figure = {"kernels": native.used(), "model": model, **measured, **peaks}
                    figures.append(figure)
                    print(_line(figure), flush=True)
    print("sampling      rows     us ours    reference")
    for figure in _sampling():
        figures.append(figure)
        times = f"{figure['ours']:11.0f} {figure['reference']:12.0f}"
        print(f"{figure['sampling']:12} {figure['rows']:5} {times}", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


def _plain(folder: Path) -> Any:
    source, built = Path(__file__).with_name("plain_products.cpp"), folder / "plain.so"
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wno-ignored-attributes"]
    subprocess.run(["g++", *flags, str(source), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


def _line(figure: dict[str, Any]) -> str:
    def rates(kind: str) -> str:
        share = f"{figure[kind] / figure[f'{kind}_peak']:6.2f}" if figure[f"{kind}_peak"] else "     -"
        others = " ".join(f"{figure[f'{kind}_{name}']:6.0f}" for name in ("plain", "onednn"))
        return f"{figure[kind]:7.0f} ({figure[f'{kind}_bytes']:5.1f}) {share} {others}"

    return f"{figure['n']:7} {figure['k']:6} {figure['rows']:5}    {rates('bf16')}    {rates('int8')}"


def _products(library: Any, plain: Any, n: int, k: int, heights: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    copies = max(2, int(COLD_BYTES / (n * k * 2)))
    weights = [torch.randn(n, k).to(BF16) for _ in range(copies)]
    own, onednn = NativeProducts(library), OneDnnProducts(BF16)
    packed = [own.pack({"weight": weight}) for weight in weights]
    onednn_packed = [onednn.pack({"weight": weight}) for weight in weights]
    rounded = [torch.randint(-127, 128, (n, k), dtype=INT8) for _ in range(copies)]
    scale, no_zero_points = torch.ones(n), torch.zeros(n, dtype=torch.int32)
    own_bytes = _own_bytes(library, k)
    bytes_packed = [own_bytes.pack({"weight": weight, "scale": scale}) for weight in rounded]
    onednn_bytes = [torch.ops.onednn.qlinear_prepack(weight, None) for weight in rounded]
    multiply, multiply_bytes, onednn_multiply = (one.bind(n, k) for one in (own, own_bytes, onednn))
    for m in heights:
        x, y = torch.randn(m, k).to(BF16), torch.empty(m, n)
        out = torch.empty(m, n, dtype=BF16)
        x8, y8 = torch.randint(-127, 128, (m, k), dtype=INT8), torch.empty(m, n, dtype=torch.int32)
        emit = own_bytes.wants(k)
        assert emit is not None
        quantized = Quantized(
            x8, torch.ones(m, k // emit.group), x8.unflatten(1, (-1, emit.sums)).sum(-1, dtype=torch.int32), emit.group
        )
        calls: dict[str, Callable[[int], object]] = {
            "bf16": lambda i, x=x, out=out: multiply(x, packed[i], out=out),
            "bf16_plain": lambda i, x=x, y=y, m=m: plain.plain_bf16(*_at(x, packed[i], y), m, n, k),
            "bf16_onednn": lambda i, x=x: onednn_multiply(x, onednn_packed[i]),
            "int8": lambda i, x=quantized, out=out: multiply_bytes(x, bytes_packed[i], out=out),
            "int8_plain": lambda i, x=x8, y=y8, m=m: plain.plain_int8(*_at(x, bytes_packed[i], y), m, n, k),
            "int8_onednn": lambda i, x=x8: torch.ops.onednn.qlinear_pointwise(
                x, 1.0, 0, onednn_bytes[i], scale, no_zero_points, None, 1.0, 0, BF16, "none", [], ""
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                seconds[name].append(_best(call, copies))
        rates = {name: 2e-9 * m * n * k / statistics.median(times) for name, times in seconds.items()}
        moved = {f"{name}_bytes": rates[name] * size / (2 * m) for name, size in (("bf16", 2), ("int8", 1))}
        yield {"n": n, "k": k, "rows": m, **rates, **moved}


def _own_bytes(library: Any, k: int) -> QuantizedProducts:
    scheme = served(candidates("int8", k)[0])
    assert isinstance(scheme, Scheme)
    return QuantizedProducts(library, scheme)


def _sampling() -> Iterator[dict[str, Any]]:
    """Microseconds per call, for logits with a realistic spread."""
    platform = CpuPlatform()
    ours, reference = (BoundOps(ops, platform.open(0)) for ops in (platform.ops(REFERENCE), REFERENCE))
    for name, spec in SAMPLING.items():
        for m in SAMPLED_ROWS:
            logits, zeros = (torch.randn(m, VOCABULARY) * 2.5).to(BF16), torch.zeros(m)
            place = torch.arange(m, dtype=torch.int32)
            seeds = torch.stack((place, zeros.int()), dim=-1)
            rows = SamplingRows(zeros + 0.7, zeros.int(), zeros + 0.9, zeros, seeds, place)
            bound = {"ours": ours.bind("sample", spec), "reference": reference.bind("sample", spec)}
            calls = {kind: partial(call, logits, rows) for kind, call in bound.items()}
            seconds: dict[str, list[float]] = {kind: [] for kind in calls}
            for _ in range(ROUNDS):
                for kind, call in calls.items():
                    seconds[kind].append(_best(lambda _, call=call: call(), 1))
            medians = {kind: 1e6 * statistics.median(times) for kind, times in seconds.items()}
            yield {"sampling": name, "rows": m, **medians}


def _at(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _best(call: Callable[[int], object], copies: int) -> float:
    """Seconds of the fastest call within a fixed time; each call uses other weights than the one before."""
    best, end, turn = float("inf"), time.perf_counter() + SECONDS, 0
    while turn < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call(turn % copies)
        best, turn = min(best, time.perf_counter() - start), turn + 1
    return best


if __name__ == "__main__":
    sys.exit(main())
