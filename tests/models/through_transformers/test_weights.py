"""Checkpoints as they are published: stacked experts apart, names with and without a prefix, tied and transposed
weights, tensors that stay in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.layers.build import Build
from tessera.loader.checkpoint import Safetensors
from tessera.loader.load import load_weights
from tessera.models.through_transformers.attention import SINKS, AttentionCall, BoundAttention, Step
from tessera.models.through_transformers.model import through_transformers
from tessera.models.through_transformers.skeleton import Sight
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.platform.device import Arena
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.through_transformers import THROUGH_TRANSFORMERS


def built(name, dtype="float32"):
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, dtype, [ReferenceAttention()])
    config = THROUGH_TRANSFORMERS[name].make().config.to_dict()
    architecture = type(THROUGH_TRANSFORMERS[name].make()).__name__
    model = through_transformers(build, {**config, "architectures": [architecture]}, 32)
    return build, model


def parts(build):
    for parameter in build.parameters:
        for name in parameter.parts:
            for join in parameter.joins(name):
                yield from join


@pytest.mark.parametrize("name", ["gpt2", "olmoe", "dots1", "vaultgemma", "starcoder2"])
def test_slots_take_the_whole_checkpoint_and_nothing_else(through, name):
    folder, _ = through(name)
    stored = load_file(folder / "model.safetensors")
    build, _ = built(name)
    taken = {part.name: part.whole for part in parts(build)}
    assert taken == {name: tuple(tensor.shape) for name, tensor in stored.items()}


def test_names_without_the_prefix(through, tmp_path):
    folder, answers = through("gpt2")
    stored = load_file(folder / "model.safetensors")
    assert any(name.startswith("transformer.") for name in stored)
    save_file(
        {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}, tmp_path / "a.safetensors"
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    compared, _ = MODES["mixed batch"](Subject(tmp_path, PLATFORMS["cpu"], answers[:2]))
    assert all(one.ok for one in compared)


@pytest.mark.parametrize("name", ["starcoder2", "vaultgemma"])
def test_a_tied_head_is_read_once(through, name):
    folder, _ = through(name)
    build, model = built(name)
    device, arena = ReferencePlatform().open(0), Arena("weights")
    stored = load_file(folder / "model.safetensors")
    load_weights(build.parameters, Safetensors(str(folder)), "float32", device, arena, lambda _: None)
    assert "lm_head.weight" not in stored
    embedding = getattr(model._embed, "weight", None)
    embedding = model._embed.parameter.tensor if embedding is None else embedding
    assert model.head.weight["weight"].data_ptr() == embedding.data_ptr()
    assert arena.nbytes == sum(tensor.nbytes for tensor in stored.values())


def test_what_stays_in_float32(through):
    folder, _ = through("dots1")
    build, _ = built("dots1", "bfloat16")
    device = ReferencePlatform().open(0)
    load_weights(build.parameters, Safetensors(str(folder)), "bfloat16", device, Arena("weights"), lambda _: None)
    dtypes = {
        part.name: parameter.packed["weight"].dtype
        for parameter in build.parameters
        for join in parameter.joins("weight")
        for part in join
    }
    wide = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert wide == {"model.layers.1.mlp.gate.e_score_correction_bias"}


def test_kernels_are_given_the_dtype_of_the_layer():
    """Flint keeps its sinks in float32, and other code might turn heads in it: kernels read both by their address."""
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "bfloat16", [ReferenceAttention()])
    step, sight = Step(), Sight(None, ahead=False)
    step.begin(SimpleNamespace(plans=[None]), {})
    call = AttentionCall(2, 2, head_dim=8, value_dim=8, scale=1.0, sight=sight, softcap=None, sinks=True)
    attention = BoundAttention(build, "attention", call, step, "none")
    attention.mixer = SimpleNamespace(write=lambda *_: None, attend=lambda q, *_: q)
    heads = torch.zeros(1, 2, 3, 8)
    result = attention(torch.nn.Module(), heads, heads, heads, None, {SINKS: torch.zeros(2)})
    assert result.dtype == attention.weights["sinks"].dtype == torch.bfloat16
