"""What torch_npu says to the platform's calls: `python -m tools.npu_shapes` runs it where torch_npu is. Schemas must be
those of platforms/ascend/tests/torch_npu.json, and what comes out of a kernel must have the shapes and dtypes of what
its reference computes. No number is computed."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace as replace_device
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._C import parse_schema
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from tessera.platform import BoundOps, LinearSpec, OpSet, replace
from tessera.testing import REFERENCE, AttentionCase, AttentionTrial, OpInputs, candidates

RECORD = Path(__file__).parents[2] / "platforms/ascend/tests/torch_npu.json"
TARGET = "npu:0"
OPS = ("rms_norm", "add_norm", "rotary", "gate", "experts", "linear")
TOKENS = 5
ROWS = (1, 40), (1, 3), (19, 19), (4, 36)
"""Of a launch: tokens to compute, and tokens in the cache afterwards."""


def changed_schemas() -> Iterator[str]:
    said = json.loads(RECORD.read_text(encoding="utf-8"))["ops"]["libtorch_npu"]
    for schema in map(parse_schema, said):
        registered = str(getattr(torch.ops.npu, schema.name).default._schema)  # noqa: SLF001  # torch's only way
        if registered.removeprefix("npu::") != str(schema):
            yield f"another schema is registered: {registered}"


def other_results(platform: Any) -> Iterator[str]:
    """Where a kernel's result is of another kind than its reference's."""
    table, device = platform.ops(REFERENCE), SimpleNamespace(target=TARGET)
    linear: Any = table["linear"].kernel
    uncast = type(linear)(
        lambda **operands: operands["input"], linear.quantize, linear.product
    )  # it has no meta function
    table = replace(table, linear=uncast)
    for name in OPS:
        tried, kernel = 0, table[name].kernel
        for spec in _specs(name):
            if kernel is not None and kernel.supports(spec) is None:
                tried += 1
                yield from _differences(table, device, name, spec)
        yield from [] if tried else [f"{name}: none of the specs is supported"]
        print(f"{name}: {tried} specs")


def _specs(name: str) -> list[Any]:
    """The op's own, and products of sizes that are multiples of the tiles."""
    sampled = REFERENCE[name].sample_specs
    assert sampled is not None, name
    schemes = (None, *candidates("int8", 160))
    wide = [
        LinearSpec(96, 160, dtype, scheme, bias=bias)
        for dtype in ("bfloat16", "float16") for scheme in schemes for bias in (False, True)
    ]  # fmt: skip
    return [*sampled(), *(wide if name == "linear" else ())]


def _differences(table: OpSet, device: Any, name: str, spec: Any) -> Iterator[str]:
    dtype = getattr(spec, "dtype", "bfloat16")
    given = OpInputs(TOKENS, dtype=dtype).arguments(name, spec)
    host = BoundOps(REFERENCE, SimpleNamespace(target=torch.device("cpu")))  # type: ignore[arg-type]
    expected = _kinds(host.bind(name, spec)(*given))
    with FakeTensorMode(allow_non_fake_inputs=True):
        ops = BoundOps(table, device)
        moved = tree_map(_fake, OpInputs(TOKENS, dtype=dtype).arguments(name, spec))
        if name == "linear":
            moved = moved[0], ops.prepare(name, spec, moved[1])
        try:
            found = _kinds(ops.bind(name, spec)(*moved))
        except (RuntimeError, TypeError, ValueError) as error:
            found = str(error).partition("\n")[0]
    if found != expected:
        yield f"{name} {spec}: {found}, not {expected}"


def _fake(value: Any) -> Any:
    """On the device, without contents."""
    return torch.empty_like(value, device=TARGET) if isinstance(value, torch.Tensor) else value


def _kinds(value: Any) -> Any:
    return tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf, value)


def attention(platform: Any) -> Iterator[str]:
    """Where the layer does not take what a launch has: one whose tokens lie in order, and one with gaps."""
    (backend,) = platform.attention_backends()
    device: Any = SimpleNamespace(target=TARGET, to_device=lambda values: _fake(torch.from_numpy(values)))
    ops = BoundOps(REFERENCE, device)
    for dtype in ("bfloat16", "float16"):
        for stride in (0, 24):
            case = AttentionCase(ROWS, 128, heads=4, kv_heads=2, head_dim=64, dtype=dtype, stride=stride)
            made = AttentionTrial(backend, case)
            launch, _ = made.launch(made.grants)
            expected = ((launch.key.tokens, 4, 64), getattr(torch, dtype))
            with FakeTensorMode(allow_non_fake_inputs=True):
                launch.slot_mapping, launch.block_tables, caches = tree_map(
                    _fake, (launch.slot_mapping, launch.block_tables, made.caches)
                )
                q, k = (torch.empty(launch.key.tokens, heads, 64, dtype=expected[1], device=TARGET) for heads in (4, 2))
                layer = backend.bind(case.spec(), {}, ops, device)
                plan = backend.plan(launch, replace_device(made.group, device=device), None)
                try:
                    layer.write(k, k, caches, plan)
                    found = _kinds(layer.attend(q, caches, plan))
                except (RuntimeError, TypeError, ValueError) as error:
                    found = str(error).partition("\n")[0]
            if found != expected:
                yield f"attention in {dtype}: {found}, not {expected}"
            print(f"attention in {dtype}, stride {stride}: {found}")


def not_refused(platform: Any) -> Iterator[str]:
    """Whether torch_npu takes a weight whose inputs are as many as its outputs should be, which shows that it looks."""
    product = platform.ops(REFERENCE)["linear"].kernel.product
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it prints the error that is expected
    with FakeTensorMode():
        x, weight = (torch.empty(size, dtype=torch.int8, device=TARGET) for size in ((TOKENS, 160), (96, 160)))
        scale, scales = (torch.empty(size, device=TARGET) for size in (160, TOKENS))
        try:
            product(x1=x, x2=weight, scale=scale, pertoken_scale=scales, output_dtype=torch.bfloat16)
        except RuntimeError as error:
            print(f"refused: {str(error).partition(',')[0]}")
        else:
            yield "a weight of the wrong size is not refused"


def main() -> int:
    npu = import_module("torch_npu")
    print(f"torch_npu {npu.__version__}")
    platform = import_module("tessera_ascend.platform").AscendPlatform()
    wrong = [*changed_schemas(), *other_results(platform), *attention(platform), *not_refused(platform)]
    for line in wrong:
        print(line)
    print(f"{len(wrong)} wrong" if wrong else "all as recorded and as the references compute")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
