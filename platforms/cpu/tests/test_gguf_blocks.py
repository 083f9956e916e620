"""Weights in the blocks of GGUF files on the native kernels of every instruction set, against what the blocks mean in
float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.platform import Encoding, LinearSpec, PackedEmbeddingSpec, Quantized
from tessera.testing import encoded_scheme
from tessera_cpu import blocks, native
from tessera_cpu.blocks import BLOCKS, BlockProducts
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

pytestmark = needs_kernels
HALVES = {
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2)),
    **dict.fromkeys(("mxfp4", "nvfp4"), ()),
    "q3_k": (108,),
    "q6_k": (208,),
}
"""Where float16 numbers are in a block, if not at its beginning alone."""
BITS = {"q3_k": 4.5625, "q4_k": 4.625, "q5_k": 5.625, "iq4_xs": 4.5625}
"""Of an element, if not as in the file."""
NEAR = 4e-3  # of a result, which is rounded to bfloat16
every_kind = pytest.mark.parametrize("kind", sorted(BLOCKS))


@pytest.fixture(params=available())
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels(request.param):
        yield


def own(kind: str) -> BlockProducts:
    return BlockProducts(native.library(), encoded_scheme(kind))


def encoding(kind: str) -> Encoding:
    found = encoded_scheme(kind).weight.encoding
    assert found is not None
    return found


def blocks_of(kind: str, n: int, k: int) -> Tensor:
    """Random blocks with scales of about 1, of both signs where the type has them."""
    random, block = np.random.default_rng(n + k), encoding(kind)
    blocks = random.integers(0, 256, (n, k // block.elements, block.bytes), np.uint8)
    for start in HALVES.get(kind, (0,)):
        scales = (random.random(blocks.shape[:2]) + 0.5) * random.choice([-1, 1], blocks.shape[:2])
        blocks[..., start : start + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    if kind == "mxfp4":
        blocks[..., 0] = random.integers(120, 134, blocks.shape[:2])
    return torch.from_numpy(blocks)


def meaning(kind: str, blocks: Tensor) -> Tensor:
    """float32 [n, k]."""
    return encoding(kind).dequantize({"weight": blocks})


def rows(tokens: int, k: int) -> tuple[Quantized, Tensor]:
    """Quantized rows, and what they mean in float64."""
    random = torch.Generator().manual_seed(tokens)
    data = torch.randint(-127, 128, (tokens, k), generator=random, dtype=torch.int8)
    scale = torch.rand(tokens, k // 32, generator=random) + 0.5
    sums = data.unflatten(1, (-1, 16)).sum(-1, dtype=torch.int32)
    return Quantized(data, scale, sums, 32), data.double() * scale.double().repeat_interleave(32, dim=1)


def close(found: Tensor, expected: Tensor, weight: Tensor, x: Tensor) -> bool:
    """Within what a bfloat16 rounds of the result, and a float of its terms."""
    terms = x.abs() @ weight.double().abs().T
    return bool(((found.double() - expected).abs() <= NEAR * expected.abs() + 1e-5 * terms).all())


@every_kind
@pytest.mark.parametrize(("n", "spans"), [(1, 1), (70, 5), (33, 9)])
def test_linear(instructions: None, kind: str, n: int, spans: int) -> None:
    """In several blocks of the kernel's, and of uneven length, where a block of the type is short enough."""
    block = encoding(kind)
    k = spans * block.elements * (8 if block.elements < 256 and spans > 5 else 1)
    blocks = blocks_of(kind, n, k)
    weight, products = meaning(kind, blocks), own(kind)
    packed, bias = products.pack({"weight": blocks}), torch.randn(n).bfloat16()
    assert packed.nbytes == products.packed_bytes(n, k)
    bits = BITS.get(kind, 8 * block.bytes / block.elements)
    assert packed.nbytes == -(-n // 32) * 32 * k * bits / 8
    wanted = products.wants(k)
    assert wanted is not None
    assert (wanted.group, wanted.sums) == (32, 16)
    for tokens in (1, 3, 5, 13, 50):
        x, plain = rows(tokens, k)
        out = torch.full((tokens, n + 3), torch.nan, dtype=torch.bfloat16)
        products.bind(n, k)(x, packed, bias, out=out[:, :n])
        assert close(out[:, :n], plain @ weight.double().T + bias.double(), weight, plain)
        assert out[:, n:].isnan().all()


@every_kind
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_gate_inside_the_product(instructions: None, kind: str, tokens: int) -> None:
    n, k = 96, 512
    blocks, products = blocks_of(kind, 2 * n, k), own(kind)
    weight, (x, plain) = meaning(kind, blocks), rows(tokens, k)
    x = x._replace(scale=x.scale / 4096)
    gate, up = (plain / 4096 @ weight.double().T).split(n, dim=1)
    found = products.bind_gated(n, k, native.ACTIVATIONS["silu"])(x, products.pack({"weight": blocks}))
    expected = torch.nn.functional.silu(gate) * up
    assert ((found.double() - expected).abs() <= 0.02 * expected.abs() + 1e-3 * expected.abs().max()).all()


@every_kind
def test_a_row_has_the_same_bits_beside_any_others(instructions: None, kind: str) -> None:
    n, k = 40, 2304
    blocks, products, (x, _) = blocks_of(kind, n, k), own(kind), rows(40, k)
    packed, call = products.pack({"weight": blocks}), products.bind(n, k)
    alone = [call(part(x, slice(row, row + 1)), packed)[0] for row in range(13)]
    for height in (2, 4, 5, 12, 13, 40):
        together = call(part(x, slice(height)), packed)
        assert all(map(torch.equal, together, alone[:height])), height


def part(x: Quantized, of: slice) -> Quantized:
    assert x.sums is not None
    return x._replace(data=x.data[of], scale=x.scale[of], sums=x.sums[of])


@every_kind
@pytest.mark.parametrize("factor", [1.0, 6.3125])
def test_rows_looked_up(instructions: None, kind: str, factor: float) -> None:
    n, k = 70, 768
    blocks, products = blocks_of(kind, n, k), own(kind)
    spec = PackedEmbeddingSpec(LinearSpec(n, k, "bfloat16", encoded_scheme(kind)), scale=factor)
    tokens = torch.tensor([0, 69, 33, 3, 33], dtype=torch.int32)
    found = products.bind_look_up(spec)(tokens, products.pack({"weight": blocks}))
    assert torch.equal(found, (meaning(kind, blocks)[tokens] * factor).bfloat16())


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_every_scale_of_a_byte_is_read(instructions: None, kind: str) -> None:
    """Also those whose products are no normal floats."""
    blocks = blocks_of(kind, 256, 64)
    every: Any = torch.arange(256, dtype=torch.uint8)[:, None]
    blocks[..., : 4 if kind == "nvfp4" else 1] = every[:, None] if kind == "nvfp4" else every[..., None]
    spec = PackedEmbeddingSpec(LinearSpec(256, 64, "bfloat16", encoded_scheme(kind)))
    products, tokens = own(kind), torch.arange(256, dtype=torch.int32)
    found = products.bind_look_up(spec)(tokens, products.pack({"weight": blocks}))
    subnormal = 1.2e-38  # which instructions for bfloat16 take for zero
    torch.testing.assert_close(found, meaning(kind, blocks).bfloat16(), rtol=0, atol=subnormal)


@every_kind
def test_a_weight_is_packed_a_few_outputs_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = own(kind).pack({"weight": blocks_of(kind, 150, 512)})
    monkeypatch.setattr(blocks, "AT_A_TIME", 64)
    assert torch.equal(own(kind).pack({"weight": blocks_of(kind, 150, 512)}), packed)
