"""Measures sizes of tiles for quantized products on this card, and writes the best into the table of the library of
kernels, beside what is there for other devices and versions of Triton.

Run: python -m benchmarks.gpu.tune --platform cuda --json platforms/triton/tessera_triton/tuned.json [--seconds 500]

Sizes that give other numbers than the op's definition are left out; so are those that are not at least a twentieth
faster than the computed ones.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu.models import LLAMA_8B, QWEN_06B, Sizes, tiny
from benchmarks.gpu.setting import Setting
from tessera.platform import BoundOps, LinearSpec
from tessera.quantization.schemes import candidates
from tessera.testing.conformance import Target
from tessera_triton.products import Linear, Product, torch_takes
from tessera_triton.tuned import Tiling, checked, place_of, random_weight

GAIN = 1.05
TOKENS = (1, 8, 16, 32, 64, 256, 2048)
COLD = 256 << 20
"""Bytes of weights to rotate through, so that none is in a cache."""


def shapes(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Outputs and inputs of a layer's products."""
    hidden, wide = sizes["hidden_size"], sizes["intermediate_size"]
    heads, keys, dim = (sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    yield (heads + 2 * keys) * dim, hidden
    yield hidden, heads * dim
    yield 2 * wide, hidden
    yield hidden, wide


def tilings(tokens: int) -> Iterator[Tiling]:
    """Those worth trying for so many tokens."""
    heights = [height for height in (16, 32, 64, 128) if height // 2 < max(tokens, 16)]
    parts = (1, 2, 4, 8) if tokens <= 64 else (1,)
    for height, wide, stages, shared in product(heights[-2:], (32, 64, 128, 256), (3, 4), parts):
        if height * wide <= 128 * 256:
            yield Tiling(height, wide, 8 if height * wide >= 128 * 128 else 4, stages, shared)


def best(
    setting: Setting, call: Product, weights: Sequence[Any], tokens: int, deadline: float
) -> tuple[Tiling | None, float]:
    """The fastest sizes, if they gain enough, and how many times as fast as the computed ones. Raises TimeoutError."""
    x = torch.randn(tokens, call.spec.k, device=setting.device).to(getattr(torch, call.spec.dtype))

    def seconds(tilings: Mapping[int, Tiling]) -> float:
        one, turn = replace(call, tilings=tilings), cycle(weights)
        return setting.seconds(lambda: one(x, next(turn)))

    usual = seconds({})
    found: tuple[Tiling | None, float] = None, 1.0
    for one in islice(tilings(tokens), 2 if setting.tiny else None):
        if time.monotonic() > deadline:
            raise TimeoutError
        try:
            gain = usual / seconds({tokens: one})
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything, and a launch lack shared memory
            print(f"  {one}: {type(error).__name__}")
            continue
        if gain > found[1]:
            found = one, gain
    return found if found[1] >= GAIN else (None, found[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.tune", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--platform", default="cuda", help="name of a platform, or package.module:Class")
    parser.add_argument("--json", type=Path, required=True, help="the table, which is read and written")
    parser.add_argument("--quantization", nargs="+", default=["fp8", "int8", "int4"])
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--seconds", type=float, default=3600, help="for all together")
    parser.add_argument(
        "--tiny", action="store_true", help="a rehearsal: tiny products, few sizes; no device uses them"
    )
    options = parser.parse_args()
    target = Target.named(options.platform, shared=False)
    setting = Setting(options.platform, options.tiny, Path(), {})
    table: dict[str, Any] = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    deadline = time.monotonic() + options.seconds
    try:
        for name, model in product(options.quantization, (LLAMA_8B, QWEN_06B)):
            for n, k in dict.fromkeys(shapes(tiny(model) if options.tiny else model)):
                _tune(setting, target, LinearSpec(n, k, "bfloat16", candidates(name, k)[0]), options, table, deadline)
    except TimeoutError:
        print("No time was left for more.")


def _tune(
    setting: Setting, target: Any, spec: LinearSpec, options: argparse.Namespace, table: dict[str, Any], deadline: float
) -> None:
    ops: BoundOps = target.bound()
    kernel = ops.ops["linear"].kernel
    assert isinstance(kernel, Linear), "the platform multiplies with the library's kernels"
    if kernel.supports(spec) is not None:
        print(f"{place_of(spec)}: {kernel.supports(spec)}")
        return
    assert spec.scheme is not None
    by_torch = torch_takes(spec, spec.scheme, kernel.facts)
    call = Product(kernel.facts, kernel.launch, spec, spec.scheme, by_torch)
    packed = [kernel.prepare(spec, raw) for raw in _weights(setting, spec)]
    version = ".".join(triton.__version__.split(".")[:2])
    device = "rehearsed" if setting.tiny else kernel.facts.name
    kept = table.setdefault(device, {}).setdefault(version, {})
    for tokens in options.tokens:
        found, gain = best(setting, call, packed, tokens, deadline)
        define = ops.ops["linear"].reference
        assert define is not None
        if found is not None and checked(spec, {tokens: found}, define, kernel.prepare, call.tiled, setting.device):
            kept.setdefault(place_of(spec), {})[str(tokens)] = list(found)
        print(f"{place_of(spec)}, {tokens} tokens: {gain:.2f} times as fast with {found}", flush=True)
        options.json.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _weights(setting: Setting, spec: LinearSpec) -> list[Any]:
    number = min(max(1, setting.scale(COLD, 1) // (spec.n * spec.k)), 64)
    random = torch.Generator(setting.device).manual_seed(0)
    return [random_weight(spec, random, setting.device) for _ in range(number)]


if __name__ == "__main__":
    main()
