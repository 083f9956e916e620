"""Shards of packed weights: whatever part of a weight is read, it means what that part of the whole means."""

from __future__ import annotations

import pytest
import torch

from tessera.ops.quantize import meaning
from tessera.platform import Part
from tessera.quantization.formats.compressed_tensors import compressed_tensors
from tests.platforms.packed_models import words
from tests.unit.quantization.test_compressed_tensors import INT4, INT8, TOKEN, config

N, K, GROUP = 42, 96, 32


def checkpoint(bits, group, symmetric):
    """Tensors by their last names, and the weight that they mean."""
    random, half = torch.Generator().manual_seed(7), 1 << bits - 1
    elements = torch.randint(-half, half, (N, K), generator=random)
    scale = torch.rand(N, K // group, generator=random)
    zero = torch.zeros(N, K // group).long() if symmetric else torch.randint(-half, half, scale.shape, generator=random)
    tensors = {"weight_packed": words(elements + half, bits), "weight_scale": scale}
    if not symmetric:
        tensors["weight_zero_point"] = words((zero + half).T, bits).T
    wide = [one.repeat_interleave(group, 1) for one in (zero, scale)]
    return tensors, (elements - wide[0]) * wide[1]


def read(part, tensors):
    """As the loader does."""
    stored = tensors[part.name.removeprefix("a.")]
    assert stored.shape == part.whole
    rows = slice(*part.rows) if part.rows else slice(None)
    columns = slice(*part.columns) if part.columns else slice(None)
    shard = stored[rows] if stored.dim() == 1 else stored[rows, columns]
    shard = torch.cat((shard, shard.new_zeros(part.shape[0] - len(shard), *shard.shape[1:]))).contiguous()
    made = part.unpacking.call(shard) if part.unpacking else shard
    assert len(made) == part.length
    if part.unpacking:
        assert part.unpacking.call(shard.to("meta")).shape == made.shape
    return made


SHARDS = [(None, None), ((0, 21), None), ((21, 42), None), ((13, 14), None), ((40, 50), None), (None, (0, 32))]
SHARDS += [(None, (0, 48)), (None, (48, 96)), (None, (32, 64)), ((3, 30), (24, 48)), ((9, 17), (72, 96))]


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize(("bits", "group"), [(4, GROUP), (4, K), (4, 8), (8, GROUP), (8, K)])
@pytest.mark.parametrize(("rows", "columns"), SHARDS)
def test_a_shard_means_its_part_of_the_whole(rows, columns, bits, group, symmetric):
    strategy = {"strategy": "channel", "group_size": None} if group == K else {"group_size": group}
    said = config(weights={**INT4, "num_bits": bits, "symmetric": symmetric, **strategy})
    tensors, whole = checkpoint(bits, group, symmetric)
    found = compressed_tensors(said).stored(Part("a.weight", (N, K), rows, columns), "Linear", "float32")
    parts = {name: read(part, tensors) for name, part in found.parts.items()}
    n, k = found.parts["scale"].length, (columns or (0, K))[1] - (columns or (0, K))[0]
    for name, tensor in parts.items():
        spec = found.scheme.parts[name]
        assert tuple(tensor.shape) == tuple(size // per for size, per in zip((n, k), spec.per, strict=False))
    meant = meaning(parts, found.scheme)
    expected = whole[slice(*rows) if rows else slice(None), slice(*columns) if columns else slice(None)]
    assert torch.allclose(meant[: len(expected)], expected, atol=1e-6)
    assert not meant[len(expected) :].any()  # a vocabulary's rows beyond the last


def test_one_scale_for_all_is_one_for_each_output():
    weights = {**INT8, "strategy": "tensor"}
    part = Part("a.weight", (N, K), rows=(0, 21))
    found = compressed_tensors(config("int-quantized", weights, TOKEN)).stored(part, "Linear", "bfloat16")
    assert read(found.parts["scale"], {"weight_scale": torch.tensor([0.25])}).tolist() == [0.25] * 21
