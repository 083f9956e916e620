"""Weights that are rounded into blocks: each element becomes one of the nearest numbers that its block can hold."""

from __future__ import annotations

import gguf
import pytest
import torch

from tessera.quantization.encoders import ENCODERS, encode
from tessera.quantization.encodings import encoded_scheme
from tessera.quantization.rounding import quantised
from tessera.testing import random_blocks

# The largest distance of an element to the number it becomes, as a part of the range of its group: a step and a half of
# the codes, and what rounding scales and minimums to few bits adds.
_BOUNDS = {
    "q4_0": (32, 1.5 / 8),
    "q4_1": (32, 1.5 / 15),
    "q5_0": (32, 1.5 / 16),
    "q5_1": (32, 1.5 / 31),
    "q8_0": (32, 0.51 / 127),
    "q4_k": (32, 0.5 / 15 + 2.5 / 63),
    "q5_k": (32, 0.5 / 31 + 2.5 / 63),
    "q6_k": (16, 1.5 / 32),
}


def decoded(name, blocks):
    """By the gguf package, float32 [n, k]."""
    kind = gguf.GGMLQuantizationType[name.upper()]
    return torch.from_numpy(gguf.quants.dequantize(blocks.flatten(1).numpy(), kind))


def weight(n, k, seed=3):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=random) * torch.logspace(-3, 1, n)[:, None]


def test_every_encoder_has_a_bound():
    assert _BOUNDS.keys() == ENCODERS.keys()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elements_become_near_numbers(name, dtype):
    group, share = _BOUNDS[name]
    floats = weight(37, 768).to(dtype)
    blocks = encode(name, floats)
    elements, size, _ = ENCODERS[name]
    assert (blocks.shape, blocks.dtype) == ((37, 768 // elements, size), torch.uint8)
    apart = (decoded(name, blocks) - floats.float()).unflatten(-1, (-1, group)).abs().amax(-1)
    groups = floats.float().unflatten(-1, (-1, group))
    least, most = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    reach = torch.maximum(most, -least) if name in {"q4_0", "q5_0", "q8_0", "q6_k"} else most - least
    if name.endswith("_k"):  # a small group shares the unit of its block's scales
        reach = torch.maximum(
            reach, reach.unflatten(-1, (-1, 256 // group)).amax(-1).repeat_interleave(256 // group, -1)
        )
    assert bool((apart <= share * reach * 1.01).all())


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_the_loss_is_no_larger_than_the_package_s(name):
    floats = weight(64, 768)
    kind = gguf.GGMLQuantizationType[name.upper()]
    theirs = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(floats.numpy(), kind), kind))
    ours = decoded(name, encode(name, floats))
    assert bool(((ours - floats).square().sum(-1) <= (theirs - floats).square().sum(-1) * 1.0001).all())


@pytest.mark.parametrize("name", ["q4_0", "q5_0", "q8_0"])
def test_numbers_that_a_block_holds_stay_as_they_are(name):
    scheme = encoded_scheme(name)
    blocks = random_blocks(scheme, (29, 96), torch.Generator().manual_seed(8))
    values = decoded(name, blocks)
    limit = {"q4_0": 8, "q5_0": 16, "q8_0": 127}[name]
    whole = values.unflatten(-1, (-1, 32)).abs().amax(-1)
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0].float().abs()
    full = whole == scales * limit  # else the encoder may choose a finer scale
    again = decoded(name, encode(name, values)).unflatten(-1, (-1, 32))
    assert full.any()
    assert torch.equal(again[full], values.unflatten(-1, (-1, 32))[full])


@pytest.mark.parametrize("name", ENCODERS)
def test_blocks_of_zeros_and_of_one_sign(name):
    zeros = torch.zeros(2, 256)
    assert torch.equal(decoded(name, encode(name, zeros)), zeros)
    for sign in (-1, 1):
        some = sign * (weight(3, 256).abs() + 0.5)
        apart = (decoded(name, encode(name, some)) - some).abs().amax(-1)
        assert bool((apart <= 0.08 * some.abs().amax(-1)).all())


def test_experts_and_meta_tensors_keep_their_leading_dimensions():
    stacked = weight(6, 64).view(2, 3, 64)
    blocks = encode("q5_0", stacked)
    assert torch.equal(blocks.flatten(0, 1), encode("q5_0", stacked.flatten(0, 1)))
    assert encode("q5_0", stacked.to("meta")).shape == blocks.shape


def test_a_scheme_of_blocks_is_rounded_to():
    floats = weight(5, 256)
    parts = quantised(floats, encoded_scheme("q6_k"))
    assert list(parts) == ["weight"]
    assert torch.equal(parts["weight"], encode("q6_k", floats))
    with pytest.raises(KeyError):
        encode("iq2_xs", floats)
