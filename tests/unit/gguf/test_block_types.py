"""Every type of block against the gguf package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tessera.gguf.blocks import BLOCK_TYPES, OTHER_TYPES
from tessera.gguf.blocks.grids import IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, points

TYPES = {block.name: block for block in BLOCK_TYPES.values()}
NUMBERS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
BY_PEER = sorted({*TYPES} - {*NUMBERS} - {"Q8_K"})
"""The gguf package decodes no others."""
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"), (0,)),
}
"""Where the scales in float16 are."""
SCALES = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 6e-8, -6e-8, 65504.0, -65504.0, 1.0, -0.3)


def random_blocks(name, count=700):
    random = np.random.default_rng(sum(name.encode()))
    return random.integers(0, 256, (count, TYPES[name].bytes), np.uint8)


def decoded_by_peer(name, blocks):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def assert_same(values, expected):
    assert values.dtype == expected.dtype == np.float32
    assert values.shape == expected.shape
    assert np.array_equal(np.isnan(values), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert np.array_equal(values[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def test_the_table_is_the_format_s():
    sizes = {
        kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.value not in OTHER_TYPES
    }
    assert sizes == {number: (block.name, block.elements, block.bytes) for number, block in BLOCK_TYPES.items()}
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert all(names.get(number, name) == name for number, name in OTHER_TYPES.items())


@pytest.mark.parametrize("name", BY_PEER)
def test_random_bytes(name):
    blocks = random_blocks(name)
    assert_same(TYPES[name].dequantize(blocks), decoded_by_peer(name, blocks))


@pytest.mark.parametrize("name", HALVES)
def test_odd_scales(name):
    blocks = random_blocks(name, len(SCALES) ** 2)
    scales = np.array([(first, second) for first in SCALES for second in SCALES], "<f2").view(np.uint8)
    for index, start in enumerate(HALVES[name]):
        blocks[:, start : start + 2] = scales[:, 2 * index : 2 * index + 2]
    values = TYPES[name].dequantize(blocks)
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert_same(values, decoded_by_peer(name, blocks))


def test_odd_scales_of_iq1_m():
    blocks = random_blocks("IQ1_M", len(SCALES))
    parts = np.array(SCALES, "<f2").view("<u2")[:, None] >> np.array([0, 4, 8, 12], np.uint16) << 12
    words = blocks[:, 48:].view("<u2")
    words[:] = words & 0xFFF | parts
    values = TYPES["IQ1_M"].dequantize(blocks)
    assert np.isnan(values[4]).all()
    assert_same(values, decoded_by_peer("IQ1_M", blocks))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_of_fp4(name):
    blocks = random_blocks(name, 256)
    blocks[:, 0] = np.arange(256)
    assert_same(TYPES[name].dequantize(blocks), decoded_by_peer(name, blocks))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    numbers = random_blocks(name)
    with np.errstate(all="ignore"):
        expected = numbers.view(NUMBERS[name]).astype(np.float32)
    assert_same(TYPES[name].dequantize(numbers), expected)


def test_q8_k():
    blocks = random_blocks("Q8_K")
    scales = np.random.default_rng(0).standard_normal(700).astype("<f4")
    blocks[:, :4] = scales.view(np.uint8).reshape(-1, 4)
    codes = blocks[:, 4:260].view(np.int8)
    expected = [[float(scale) * int(code) for code in row] for scale, row in zip(scales, codes, strict=True)]
    assert_same(TYPES["Q8_K"].dequantize(blocks), np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        (IQ1, "IQ1_S"),
        (IQ2_XXS, "IQ2_XXS"),
        (IQ2_XS, "IQ2_XS"),
        (IQ2_S, "IQ2_S"),
        (IQ3_XXS, "IQ3_XXS"),
        (IQ3_S, "IQ3_S"),
    ],
)
def test_every_point_of_a_grid(grid, name):
    peer = getattr(gguf.quants, name)
    peer.init_grid()
    assert np.array_equal(points(grid).view(np.int8).reshape(-1, grid.size), peer.grid.reshape(peer.grid_shape))


@pytest.mark.parametrize("name", TYPES)
def test_no_blocks(name):
    block = TYPES[name]
    assert block.dequantize(np.empty((0, block.bytes), np.uint8)).shape == (0, block.elements)


@pytest.mark.parametrize("name", ["Q4_K", "IQ2_XS", "F16"])
def test_any_number_of_blocks_and_any_place_in_memory(name):
    """Slices, and blocks at odd addresses, as rows of a file have them."""
    block = TYPES[name]
    count = (1 << 14) // block.elements + 1
    flat = np.random.default_rng(1).integers(0, 256, 1 + count * block.bytes, np.uint8)
    blocks = flat[1:].reshape(count, block.bytes)
    assert_same(block.dequantize(blocks), np.concatenate([block.dequantize(blocks[i : i + 1]) for i in range(count)]))


@pytest.mark.parametrize("name", HALVES)
def test_scales_that_are_not_finite_are_seen(name):
    block = TYPES[name]
    assert block.halves == (min(HALVES[name]), max(HALVES[name]) + 2)
    blocks = np.full((5, 3, block.bytes), 0xFF, np.uint8)  # all that is no scale
    for at in HALVES[name]:
        blocks[..., at : at + 2] = 0
    assert block.is_finite(blocks)
    for at in HALVES[name]:
        for scale in SCALES:
            other = blocks.copy()
            other[4, 1, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
            assert block.is_finite(other) is bool(np.isfinite(scale))
