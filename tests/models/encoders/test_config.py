"""What encoders' config.json leaves out is what transformers takes for it; older files' names; what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from tessera.config.checkpoint import read_checkpoint
from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.models.fields import ACTIVATIONS
from tessera.models.mpnet import BUCKETS
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.plugins import load_path
from tessera.plugins.builtin import POOLING_MODELS
from tessera.reference import reference_backends
from tessera.testing import ReferencePlatform
from tests.models.loader.folders import config_only, dummy_config

SPARSE = {"vocab_size": 30, "num_hidden_layers": 7}
NARROW = {"hidden_size": 48, "intermediate_size": 20, "num_attention_heads": 4}
FAMILIES = (
    "Albert", "Bert", "Camembert", "DistilBert", "Electra", "Gte", "JinaEmbeddingsV3", "MPNet", "ModernBert",
    "NomicBert", "Roberta", "XLMRoberta",
)  # fmt: skip


def config_of(architecture, checkpoint):
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends(), generates=False)
    checkpoint = {"architectures": [architecture], **checkpoint}
    return load_path(POOLING_MODELS[architecture])(build, checkpoint, 16).config


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("narrow", [False, True])
def test_left_out(family, narrow):
    said = {**SPARSE, **(NARROW if narrow and family != "DistilBert" else {})}
    theirs = getattr(transformers, f"{family}Config")(**said)
    ours = config_of(f"{family}Model", said)
    assert (ours.vocab, ours.hidden) == (30, theirs.hidden_size)
    assert ours.inner == (theirs.hidden_dim if family == "DistilBert" else theirs.intermediate_size)
    assert ours.eps == getattr(theirs, "layer_norm_eps", getattr(theirs, "norm_eps", 1e-12))
    assert ours.embedded == getattr(theirs, "embedding_size", theirs.hidden_size)
    assert ours.types == getattr(theirs, "type_vocab_size", 0)
    named = (getattr(theirs, name, None) for name in ("hidden_activation", "hidden_act", "activation"))
    assert ours.activation == ACTIVATIONS[next(filter(None, named))]
    if ours.first_position is not None:
        assert ours.positions == theirs.max_position_embeddings
        padded = family in ("Camembert", "MPNet", "Roberta", "XLMRoberta")
        assert ours.first_position == (theirs.pad_token_id + 1 if padded else 0)
    kinds = getattr(theirs, "layer_types", None) or ["full_attention"] * len(ours.layers)
    assert len(ours.layers) == theirs.num_hidden_layers
    for layer, kind in zip(ours.layers, kinds, strict=True):
        assert (layer.heads, layer.causal) == (theirs.num_attention_heads, False)
        assert layer.window == (theirs.sliding_window + 1 if kind == "sliding_attention" else None)
        ropes = getattr(theirs, "rope_parameters", None)
        assert (layer.rope is None) == (ropes is None)
        if layer.rope is not None:
            assert layer.rope.theta == ropes.get(kind, ropes)["rope_theta"]


def test_names_of_older_nomic_files():
    said = {
        "vocab_size": 30, "n_embd": 48, "n_head": 4, "n_layer": 3, "n_inner": 40, "n_positions": 64,
        "layer_norm_epsilon": 1e-6, "rotary_emb_base": 5e3, "activation_function": "swiglu", "prenorm": False,
        "causal": False, "type_vocab_size": 2, "head_dim": None,
    }  # fmt: skip
    ours = config_of("NomicBertModel", said)
    assert (ours.hidden, ours.inner, ours.eps, ours.activation, ours.types) == (48, 40, 1e-6, "silu", 2)
    assert [(layer.heads, layer.rope.theta, layer.bias) for layer in ours.layers] == [(4, 5e3, False)] * 3


@pytest.mark.parametrize(
    ("architecture", "differs", "fault"),
    [
        ("BertModel", {"is_decoder": True}, "is_decoder is not supported"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute"),
        ("BertModel", {"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ("MPNetModel", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets must be 32"),
        ("NomicBertModel", {"prenorm": True}, "prenorm is not supported"),
        ("NomicBertModel", {"activation_function": "gelu"}, "activation_function 'gelu' is not supported"),
        ("GteModel", {"logn_attention_scale": True}, "logn_attention_scale false"),
        ("ModernBertModel", {"classifier_pooling": "max"}, "classifier_pooling must be cls or mean"),
        ("EuroBertModel", {"classifier_pooling": "last"}, "classifier_pooling must be one of bos, mean, late"),
    ],
)
def test_what_is_refused(architecture, differs, fault):
    with pytest.raises(ModelError, match=fault) as raised:
        config_of(architecture, {**SPARSE, **NARROW, **differs})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": 3}, 510),
    ],
)
def test_positions_of_padding_are_none_of_a_text(tmp_path, said, most):
    config = {"architectures": ["AnyModel"], "vocab_size": 30, **said}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_checkpoint(tmp_path, weights=False).max_positions == most


def test_distances_of_mpnet_are_counted_as_there():
    most = BUCKETS.reach - 1
    far = torch.arange(-3 * most, 3 * most)
    theirs = MPNetEncoder.relative_position_bucket(far, num_buckets=32)
    ours = BUCKETS.by_distance()[far.clamp(-most, most) + most]
    assert torch.equal(ours, theirs)


_T5 = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "n_positions": 64}
NEEDED = {
    "Qwen3Moe": {"num_experts": 9},
    "Gemma3Text": {"layer_types": ["sliding_attention", "full_attention"]},
    **dict.fromkeys(("T5", "MT5", "UMT5"), _T5),
}


@pytest.mark.parametrize("architecture", POOLING_MODELS)
def test_every_architecture_is_served(tmp_path, architecture):
    needed = next((said for name, said in NEEDED.items() if architecture.startswith(name)), {})
    distil = {"n_layers": 2, "dim": 24, "n_heads": 4} if architecture.startswith("DistilBert") else {}
    said = {"architectures": [architecture], "hidden_size": 24, "type_vocab_size": 2, **needed, **distil}
    config = dummy_config(config_only(tmp_path, **said))
    engine = Engine(config)
    pooling = engine._executor.worker.runner.model.pooling
    engine.close()
    assert engine.info.weight_bytes > 0
    assert config.model.pooler.tasks == tuple(pooling)
    if "classify" in pooling:  # what the front end takes for granted
        assert (config.model.pooler.pooling == "last") == (pooling["classify"].pooling == "last")
