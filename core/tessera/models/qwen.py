"""Qwen 2, 2.5 and 3, and Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.config.reward import PROCESS_REWARD, REWARD
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.layers.classification import HeadConfig
from tessera.layers.mlp import ExpertNames
from tessera.layers.qkv import Apart
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder
from tessera.models.deepstack import DeepstackDecoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.reading import (
    FULL,
    SLIDING,
    Windows,
    by_kind,
    everywhere,
    in_images,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    windowed,
)
from tessera.models.rope import interleaved

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_QWEN3 = {**_QWEN, "head_dim": 128}
_QWEN3_MOE: dict[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "moe_intermediate_size": 768,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
}
_QWEN3_VL_MOE = {
    **_QWEN3_MOE,
    "num_key_value_heads": 16,
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1408,
    "num_local_experts": 60,
    "num_experts_per_tok": 4,
    "rope_theta": 5e5,
}

_OMNI: dict[str, Any] = {
    **_QWEN,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "sliding_window": 32768,
    "max_position_embeddings": 32768,
}
_OMNI_MOE: dict[str, Any] = {
    **{name: value for name, value in _QWEN3_MOE.items() if name != "sliding_window"},
    "rope_theta": 1e6,
    "norm_topk_prob": True,
}

_DIFFUSERS = Apart("to_out", "to_q", "to_k", "to_v")
"""Diffusers' names."""
_JUDGE = HeadConfig("score.2", dense="score.0", activation="relu", pooling="last")
"""Of reward models."""


def qwen2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN)
    return _qwen2(build, fields, read_attention(fields, max_model_len, bias=True))


def qwen2_vl(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Qwen 2 VL and 2.5 VL."""
    fields = ConfigFields(checkpoint, {**_QWEN, "rope_theta": 1e6})
    shape = read_attention(fields, max_model_len, bias=True)
    return _qwen2(build, fields, in_images(build, fields, shape, (16, 24, 24)))


def qwen2_5_omni(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Qwen 2.5 Omni's thinker."""
    return qwen2_vl(build, {**_OMNI, **checkpoint}, max_model_len)


def _qwen2(build: Build, fields: ConfigFields, shape: AttentionShape) -> Decoder:
    config = read_decoder(fields, windowed(shape, _upper_layers(fields)))
    if config.architecture.endswith((REWARD, PROCESS_REWARD)):
        config = replace(config, text_head=_JUDGE, token_head=_JUDGE)
    return build_decoder(build, config)


def qwen3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN3)
    shape = _qwen3_attention(fields, max_model_len)
    return build_decoder(build, read_decoder(fields, windowed(shape, _upper_layers(fields))))


def qwen3_vl(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Qwen 3 VL."""
    fields = ConfigFields(checkpoint, {**_QWEN3, "rope_theta": 5e5})
    return _qwen3_vl(build, fields, _qwen3_attention(fields, max_model_len))


def cosmos3_omni(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model that reasons in Cosmos 3: Qwen 3 VL's, in later checkpoints with names of its own."""
    fields = ConfigFields(checkpoint, {**_QWEN3, "rope_theta": 5e5})
    shape = _qwen3_attention(fields, max_model_len)
    if build.stored is not None and build.stored.holds("model.layers.0.self_attn.to_q.weight"):
        shape = replace(shape, layout=_DIFFUSERS, norm_names=("norm_q", "norm_k"))
    return _qwen3_vl(build, fields, shape)


def _qwen3_vl(build: Build, fields: ConfigFields, shape: AttentionShape) -> Decoder:
    shape = in_images(build, fields, shape, (24, 20, 20), interleaved)
    config = read_decoder(fields, windowed(shape, _upper_layers(fields)))
    return build_decoder(build, config, decoder=DeepstackDecoder)


def _qwen3_attention(fields: ConfigFields, max_model_len: int) -> AttentionShape:
    return read_attention(fields, max_model_len, head_norm=True, **read_biases(fields))


def qwen3_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN3_MOE)
    shape, renormalise = _qwen3_attention(fields, max_model_len), fields.flag("norm_topk_prob")
    return build_decoder(build, _with_experts(fields, shape, renormalise=renormalise))


def qwen3_vl_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Qwen 3 VL with experts, whose weights always sum to 1."""
    fields = ConfigFields(checkpoint, _QWEN3_VL_MOE)
    shape = in_images(build, fields, _qwen3_attention(fields, max_model_len), (24, 20, 20), interleaved)
    return build_decoder(build, _with_experts(fields, shape, renormalise=True), decoder=DeepstackDecoder)


def qwen3_omni_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Qwen 3 Omni's thinker."""
    fields = ConfigFields({**checkpoint, "use_sliding_window": False}, _OMNI_MOE)
    shape = in_images(build, fields, _qwen3_attention(fields, max_model_len), (24, 20, 20), interleaved)
    config = _with_experts(fields, shape, renormalise=fields.flag("norm_topk_prob"))
    return build_decoder(build, config, decoder=DeepstackDecoder)


def _with_experts(fields: ConfigFields, shape: AttentionShape, *, renormalise: bool) -> DecoderConfig:
    number = fields.count("num_hidden_layers")
    windows = everywhere(fields) if fields.flag("use_sliding_window") else (None,) * number
    named = "num_local_experts" if fields.get("num_experts") is None else "num_experts"
    moe = "model.layers.{layer}.mlp"
    names = ExpertNames(f"{moe}.gate", *(f"{moe}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down")))
    experts = read_experts(fields, named, names, fields.count("moe_intermediate_size"), renormalise=renormalise)
    return read_decoder(fields, windowed(shape, windows), experts=experts, dense_layers=dense_layers(fields, number))


def dense_layers(fields: ConfigFields, number: int) -> frozenset[int]:
    """Layers with an MLP: mlp_only_layers, and all but every decoder_sparse_step-th layer."""
    step = fields.count("decoder_sparse_step", 1)
    return frozenset(fields.numbers("mlp_only_layers")) | {n for n in range(number) if (n + 1) % step}


def _upper_layers(fields: ConfigFields) -> Windows:
    """Windows for the layers from max_window_layers on, if use_sliding_window is set, or for those that layer_types
    names."""
    number = fields.count("num_hidden_layers")
    if not fields.flag("use_sliding_window") or fields.get("sliding_window") is None:
        return (None,) * number
    first = fields.count("max_window_layers", least=0)
    return by_kind(fields, layer_kinds(fields, [SLIDING if layer >= first else FULL for layer in range(number)]))
