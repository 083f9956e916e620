"""Weights that stay in their blocks: products and lookups are those of the numbers that the blocks mean."""

from __future__ import annotations

import dataclasses

import gguf
import pytest
import torch

from tessera.errors import PlatformError
from tessera.ops.linear import linear, packed_embedding
from tessera.ops.quantize import meaning
from tessera.platform import (
    ActSpec,
    Encoding,
    LinearSpec,
    PackedEmbeddingSpec,
    QuantSpec,
    Scheme,
    TensorSpec,
)
from tessera.quantization.description import describe_scheme
from tessera.quantization.encodings import encoded_scheme
from tessera.testing import random_blocks
from tessera.testing.random_parts import SCALES

GROUPS = ActSpec("int8", granularity="group", group=32)


def weight_of(name, n=21, blocks=3, seed=1):
    scheme = encoded_scheme(name)
    random = torch.Generator().manual_seed(seed)
    return scheme, random_blocks(scheme, (n, blocks * scheme.granule(1)), random)


def values_of(name, blocks):
    """By the gguf package, float64 [n, k]."""
    kind = gguf.GGMLQuantizationType[name.upper()]
    return torch.from_numpy(gguf.quants.dequantize(blocks.flatten(1).numpy(), kind)).double()


@pytest.mark.parametrize("name", SCALES)
def test_a_product_is_that_of_the_decoded_weight(name):
    scheme, blocks = weight_of(name)
    values = values_of(name, blocks)
    assert torch.equal(meaning({"weight": blocks}, scheme).double(), values)
    spec = LinearSpec(*values.shape, "float32", scheme, bias=True)
    x, bias = torch.randn(5, spec.k), torch.randn(spec.n)
    found = linear(spec, x, {"weight": blocks, "bias": bias})
    assert torch.equal(found, x @ values.float().T + bias)
    assert torch.allclose(found.double(), x.double() @ values.T + bias, atol=1e-5)


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q8_0", "q4_1"])
def test_rounded_activations_have_a_scale_for_each_group(name):
    scheme, blocks = weight_of(name)
    values = values_of(name, blocks)
    spec = LinearSpec(*values.shape, "float32", dataclasses.replace(scheme, activation=GROUPS))
    x = torch.randn(5, spec.k) * torch.logspace(-3, 3, spec.k)
    groups = x.double().unflatten(1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    expected = ((groups / scale).round() * scale).flatten(1) @ values.T
    found = linear(spec, x, {"weight": blocks})
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert not torch.allclose(found.double(), x.double() @ values.T, rtol=1e-5)


def test_rows_are_looked_up_in_their_blocks():
    scheme, blocks = weight_of("q6_k", n=30)
    values = values_of("q6_k", blocks).float()
    spec = LinearSpec(*values.shape, "float32", scheme)
    tokens = torch.tensor([3, 29, 0, 3], dtype=torch.int32)
    assert torch.equal(packed_embedding(PackedEmbeddingSpec(spec), tokens, {"weight": blocks}), values[tokens.long()])
    part = PackedEmbeddingSpec(spec, start=10, sharded=True, scale=2.0)
    found = packed_embedding(part, torch.tensor([9, 10, 39, 40], dtype=torch.int32), {"weight": blocks})
    assert torch.equal(found, torch.stack([0 * values[0], 2 * values[0], 2 * values[29], 0 * values[0]]))


def test_a_shard_is_whole_blocks_and_has_the_shape_that_its_parts_say():
    scheme, blocks = weight_of("q4_k", n=5)
    assert (scheme.granule(0), scheme.granule(1)) == (1, 256)
    part = scheme.parts["weight"]
    assert tuple(blocks.shape) == (5 // part.per[0], 768 // part.per[1], *part.inner)
    assert describe_scheme(scheme) == "q4_k, in blocks of 256"
    on_meta = meaning({"weight": blocks.to("meta")}, scheme)
    assert (on_meta.shape, on_meta.dtype, on_meta.is_meta) == ((5, 768), torch.float32, True)
    with pytest.raises(PlatformError, match="there are no random blocks of 'iq1_m'; take one of q4_0, q4_1, "):
        random_blocks(encoded_scheme("iq1_m"), (1, 256), torch.Generator())


def test_an_encoding_may_have_scales_apart_and_one_for_the_whole_weight():
    """As MXFP4 and NVFP4 are stored in folders: codes, a scale for each block, and a scale of all."""

    def dequantize(parts):
        codes = torch.stack((parts["weight"] & 15, parts["weight"] >> 4), -1).flatten(-2).float() - 8
        scale = torch.exp2(parts["scale"].float() - 127)
        return (codes * scale[..., None]).flatten(-2) * parts["whole"]

    parts = {"weight": TensorSpec("uint8", (1, 32), (16,)), "scale": TensorSpec("uint8", (1, 32))}
    scheme = Scheme(
        QuantSpec("fp4", "encoding", encoding=Encoding(32, 17, dequantize)),
        parts={**parts, "whole": TensorSpec("float32")},
    )
    raw = {
        "weight": torch.randint(0, 256, (7, 2, 16), dtype=torch.uint8),
        "scale": torch.randint(120, 130, (7, 2), dtype=torch.uint8),
        "whole": torch.tensor(0.5),
    }
    values, x = dequantize(raw), torch.randn(3, 64)
    assert values.shape == (7, 64)
    assert torch.equal(linear(LinearSpec(7, 64, "float32", scheme), x, raw), x @ values.T)
    rows = packed_embedding(PackedEmbeddingSpec(LinearSpec(7, 64, "float32", scheme)), torch.tensor([6, 2]), raw)
    assert torch.equal(rows, values[[6, 2]])
