"""What a config.json leaves out is what transformers takes for it."""

from __future__ import annotations

import json

import pytest
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config

from tessera.layers.build import Build
from tessera.models import families
from tessera.platform.ops import BoundOps
from tessera.reference import REFERENCE
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform

CLASSES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mixtral": MixtralConfig,
}
SPARSE = {
    "vocab_size": 30,
    "hidden_size": 64,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}


def config_of(family, checkpoint):
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", [ReferenceAttention()])
    return getattr(families, family)(build, checkpoint, 16).config


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize(
    "given", [{}, {"use_sliding_window": True}, {"use_sliding_window": True, "max_window_layers": 1}]
)
def test_left_out(family, given):
    if family not in ("qwen2", "qwen3"):
        given = {}
    theirs, ours = CLASSES[family](**SPARSE, **given), config_of(family, {**SPARSE, **given})
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 2
    window = getattr(theirs, "sliding_window", None)
    for kind, layer in zip(kinds, ours.layers, strict=True):
        assert layer.kv_heads == (theirs.num_key_value_heads or theirs.num_attention_heads)
        assert layer.head_dim == (getattr(theirs, "head_dim", None) or 64 // 32)
        assert layer.rope.theta == theirs.rope_parameters["rope_theta"]
        assert layer.window == (window if kind == "sliding_attention" else None)
    assert ours.tied == theirs.tie_word_embeddings
    if family == "mixtral":
        assert (ours.experts.number, ours.experts.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)


@pytest.mark.parametrize(
    "said",
    [
        {"rope_theta": 7e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
        {"rope_theta": 7e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 7e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
    ],
)
def test_both_forms_of_the_rotary_embedding(said):
    rope = config_of("llama", {**SPARSE, **said}).layers[0].rope
    assert rope.theta == 7e5
    assert rope.parameters == ((("factor", 2.0),) if rope.kind == "linear" else ())


@pytest.mark.parametrize("family", CLASSES)
def test_null_is_null(family, tmp_path):
    nulls = {"num_key_value_heads": None, "sliding_window": None, "head_dim": None, "rope_scaling": None}
    layers = config_of(family, json.loads(json.dumps({**SPARSE, **nulls}))).layers
    assert {(layer.kv_heads, layer.head_dim, layer.window) for layer in layers} == {(32, 2, None)}
