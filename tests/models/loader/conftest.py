"""Models that are built but not loaded, and checkpoints that fit them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from tessera.layers.build import TENSOR_GROUP, Build
from tessera.loader.load import load_weights
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.platform.collectives import Alone
from tessera.platform.device import Arena
from tessera.plugins import load_path
from tessera.plugins.builtin import NATIVE_MODELS
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform
from tests.models.loader.folders import CONFIG

FAMILY_PATHS = {path.partition(":")[2]: path for path in NATIVE_MODELS.values()}


class Rank(Alone):
    """One of several ranks, none of which ever speaks."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


class Built:
    """A model of one rank and what it was built with."""

    def __init__(self, family, checkpoint, group):
        self.device = ReferencePlatform().open(0)
        groups = {TENSOR_GROUP: group}
        ops = BoundOps(REFERENCE, self.device, groups)
        self.build = Build(ops, self.device, "float32", [ReferenceAttention()], groups)
        self.model = load_path(FAMILY_PATHS[family])(self.build, checkpoint, 32)
        self.arena = Arena("weights")

    @property
    def parts(self):
        """(parameter, name, index of the join, part) of every part."""
        for parameter in self.build.parameters:
            for name in parameter.parts:
                for index, join in enumerate(parameter.joins(name)):
                    for part in join:
                        yield parameter, name, index, part

    def load(self, source, dtype="float32"):
        self.progress = []
        load_weights(self.build.parameters, source, dtype, self.device, self.arena, self.progress.append)
        return self


@pytest.fixture
def built():
    def make(family="llama", rank=0, size=1, **differs):
        return Built(family, {**CONFIG, **differs}, Rank(rank, size) if size > 1 else Alone())

    return make


def random_tensors(built):
    """A tensor of its whole shape for every part's name."""
    generator = torch.Generator().manual_seed(1)
    return {part.name: torch.randn(part.whole, generator=generator) for _, _, _, part in built.parts}


@pytest.fixture
def checkpoint(tmp_path, built):
    """Writes a folder with random weights; returns it and the tensors."""

    def write(family="llama", **differs):
        tensors = random_tensors(built(family, **differs))
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **differs}))
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path, tensors

    return write
