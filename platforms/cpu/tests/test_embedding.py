"""Rows looked up in weights that were packed for products, on every instruction set: bit for bit those of the
definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tessera.platform import BoundOps, LinearSpec, PackedEmbeddingSpec
from tessera.testing import REFERENCE, assert_same, quantised
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.tape import Tape
from tests.platforms.cpu_kernels import available, kernels, needs_kernels, served_scheme

SCHEMES = ("", "float32", "int8", "int4")
"""Of quantized weights, or plain ones: in bfloat16, and in float32."""
SIZES = ((1, 8), (33, 72), (96, 520), (70, 1000))  # rows, elements: more than are floats at a time, too


@pytest.fixture(params=available())
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels(request.param):
        yield


def linear(name: str, n: int, k: int, dtype: str = "bfloat16", **differs: Any) -> LinearSpec:
    if name == "float32":
        return LinearSpec(n, k, name, **differs)
    return LinearSpec(n, k, dtype, served_scheme(name, k) if name else None, **differs)


def raw(spec: LinearSpec, seed: int = 0) -> dict[str, Any]:
    weight = torch.randn(spec.n, spec.k, generator=torch.Generator().manual_seed(seed))
    weight = weight.to(getattr(torch, spec.dtype))
    return quantised(weight, spec.scheme) if spec.scheme else {"weight": weight}


def both() -> tuple[BoundOps, BoundOps]:
    platform = CpuPlatform()
    return BoundOps(platform.ops(REFERENCE), platform.open(0)), BoundOps(REFERENCE, platform.open(0))


def ids(count: int, first: int, last: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(count)
    return torch.randint(first, last, (count,), generator=random, dtype=torch.int32)


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("n", "k"), [*SIZES, (65, 7)])
@pytest.mark.parametrize("scale", [1.0, 6.3125])
def test_rows_looked_up_are_those_of_the_definition(
    instructions: None, name: str, n: int, k: int, scale: float
) -> None:
    if name.startswith("int") and k % 8:
        k += 1
    own, reference = both()
    spec = PackedEmbeddingSpec(linear(name, n, k), scale=scale)
    packed, parts = own.prepare("linear", spec.linear, raw(spec.linear)), raw(spec.linear)
    call, expected = (ops.bind("packed_embedding", spec) for ops in (own, reference))
    assert own.choices["packed_embedding", spec].how == "native"
    tokens = torch.arange(n, dtype=torch.int32)
    assert_same(call(tokens, packed), expected(tokens, parts), 0)
    for count in (0, 1, 50):
        tokens = ids(count, 0, n)
        out = torch.full((count, k + 3), torch.nan, dtype=getattr(torch, spec.linear.dtype))
        call(tokens, packed, out=out[:, :k])
        assert_same(out[:, :k].contiguous(), expected(tokens, parts), 0)
        assert out[:, k:].isnan().all()


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
def test_of_a_shard_looked_up_tokens_of_others_are_zeros(instructions: None, name: str) -> None:
    own, reference = both()
    spec = PackedEmbeddingSpec(linear(name, 40, 72), start=40, sharded=True, scale=2.5)
    packed, tokens = own.prepare("linear", spec.linear, raw(spec.linear)), torch.arange(120, dtype=torch.int32)
    found = own.bind("packed_embedding", spec)(tokens, packed)
    assert_same(found, reference.bind("packed_embedding", spec)(tokens, raw(spec.linear)), 0)
    assert found[:40].count_nonzero() == found[80:].count_nonzero() == 0


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_looked_up_follows_a_weight_that_is_written_again(name: str) -> None:
    own, reference = both()
    spec = PackedEmbeddingSpec(linear(name, 70, 72))
    packed = own.prepare("linear", spec.linear, raw(spec.linear, 1))
    call, tokens = own.bind("packed_embedding", spec), ids(9, 0, 70)
    first = call(tokens, packed)
    own.prepare("linear", spec.linear, raw(spec.linear, 2), packed)
    assert not torch.equal(call(tokens, packed), first)
    assert_same(call(tokens, packed), reference.bind("packed_embedding", spec)(tokens, raw(spec.linear, 2)), 0)


@needs_kernels
@pytest.mark.parametrize("name", SCHEMES)
def test_looked_up_again_from_a_tape_for_other_tokens(name: str) -> None:
    own, _ = both()
    spec = PackedEmbeddingSpec(linear(name, 70, 72))
    packed = own.prepare("linear", spec.linear, raw(spec.linear))
    call, tokens = own.bind("packed_embedding", spec), ids(5, 0, 70)
    with torch.inference_mode():
        with Tape(native.library(), 5) as tape:
            rows = call(tokens, packed)
        assert tape.whole
        tokens.copy_(ids(50, 0, 70)[:5])
        rows.fill_(7.0)
        tape.replay(3)
        assert torch.equal(rows[:3], call(tokens[:3], packed))
        assert (rows[3:] == 7.0).all()


@needs_kernels
def test_what_it_cannot_read_it_says() -> None:
    kernel = both()[0].ops["packed_embedding"].kernel
    for spec, reason in (
        (linear("", 40, 72, "float16"), "only products can read what oneDNN packed"),
        (linear("int8", 40, 72, "float32"), "quantized weights take activations of bfloat16, not float32"),
        (linear("", 40, 72, experts=3), "experts are packed one by one"),
    ):
        assert kernel.supports(PackedEmbeddingSpec(spec)) == reason


def test_torchs_kernels_leave_it_to_a_table() -> None:
    with kernels("torch"):
        kernel = both()[0].ops["packed_embedding"].kernel
        assert kernel.supports(PackedEmbeddingSpec(linear("", 40, 72))) == "only products can read what oneDNN packed"
