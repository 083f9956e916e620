"""BERTs with rotary embedding instead of a table of positions: Jina embeddings v3, Nomic and GTE, whose MLPs have a
gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.mlp import GatedNames
from tessera.layers.qkv import Joined
from tessera.models.bert import BERT, DENSE_THEN_OUT, WORD, bert_encoder, encoder_fields, pooler_head
from tessera.models.encoder import BlockNames, Encoder, EncoderConfig, bert_blocks, read_encoder
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_head_dim
from tessera.models.rope import RopeReader

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_JINA: Mapping[str, Any] = {
    **BERT,
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}
_NOMIC: Mapping[str, Any] = {
    **BERT,
    "vocab_size": 30528,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
}
_GTE: Mapping[str, Any] = {
    **BERT,
    "vocab_size": 250048,
    "max_position_embeddings": 8192,
    "type_vocab_size": 1,
    "rope_theta": 160000.0,
}
_NOMIC_NAMES: Mapping[str, str] = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
"""The names in files that are older than the family in transformers."""


def jina_v3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _JINA)
    names = BlockNames("mixer", Joined("Wqkv", "out_proj"), "norm1", "norm2", ("mlp.fc1", "mlp.fc2"))
    base = build.base(["roberta"], WORD)
    config = _config(fields, max_model_len)
    blocks = bert_blocks(build, config, f"{base}encoder.layers.{{}}", names)
    return bert_encoder(build, config, base, DENSE_THEN_OUT, blocks=blocks, norm="emb_ln")


def nomic(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    said = renamed(checkpoint, _NOMIC_NAMES)
    if said.get("activation_function") is not None:
        said = {**said, "hidden_act": _gate_activation(said)}
    fields = encoder_fields(said, _NOMIC)
    for name in ("prenorm", "use_rms_norm", "causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        if fields.flag(name):
            raise ModelError(f"{name} is not supported for this architecture; it must be false in config.json.")
    gated = GatedNames(gate="fc12", up="fc11", down="fc2")
    names = BlockNames("attn", Joined("Wqkv", "out_proj"), "norm1", "norm2", gated=("mlp", gated))
    base = build.base(["nomic_bert"], WORD)
    config = _config(fields, max_model_len, bias=False)
    config = replace(config, mlp_bias=False, down_bias=False)
    blocks = bert_blocks(build, config, f"{base}encoder.layers.{{}}", names)
    return bert_encoder(build, config, base, pooler_head(base), blocks=blocks, norm="emb_ln")


def gte(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    """Also "New", as its first files call it."""
    fields = encoder_fields({**checkpoint, "position_embedding_type": None}, _GTE)
    if fields.get("pack_qkv") is False or fields.flag("logn_attention_scale"):
        raise ModelError("pack_qkv must be true and logn_attention_scale false in config.json for this architecture.")
    gated = GatedNames(down="down_proj", joined="up_gate_proj", up_first=True)
    names = BlockNames("attention", Joined("qkv_proj", "o_proj"), "attn_ln", "mlp_ln", gated=("mlp", gated))
    base = build.base(["gte", "new"], WORD)
    config = replace(_config(fields, max_model_len), mlp_bias=False)
    blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", names)
    return bert_encoder(build, config, base, pooler_head(base), blocks=blocks)


def _gate_activation(checkpoint: Checkpoint) -> str:
    gates = {"swiglu": "silu", "geglu": "gelu"}
    named = str(checkpoint["activation_function"])
    if named not in gates:
        raise ModelError(f"activation_function '{named[:40]}' is not supported; supported are {', '.join(gates)}.")
    return gates[named]


def _config(fields: ConfigFields, max_model_len: int, *, bias: bool = True) -> EncoderConfig:
    rope = RopeReader(fields, read_head_dim(fields), max_model_len).read()
    attention = {"rope": rope, "bias": bias, "output_bias": bias}
    return read_encoder(fields, max_model_len, first_position=None, attention=attention)
