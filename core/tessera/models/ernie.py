"""ERNIE 4.5: Llama's blocks, in which neighbours are turned together, dense or with experts that biased shares choose
beside an MLP that every token uses; and PaddleOCR-VL, which is dense."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.layers.mlp import Experts
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields, RefusedTypeError, renamed
from tessera.models.glm import scored_experts
from tessera.models.modality_experts import ModalityBlock, ModalityDecoder
from tessera.models.reading import in_images, read_attention, read_decoder, repeated
from tessera.models.rope import time_last

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_ALIKE: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
}
_ERNIE = {**_ALIKE, "num_key_value_heads": 2, "head_dim": 128}
_ERNIE_MOE = {
    **_ALIKE,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 6,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
_ERNIE_VL = {**_ERNIE_MOE, "moe_intermediate_size": [1536, 512]}
_FIELDS = {
    "moe_k": "num_experts_per_tok",
    "moe_num_experts": "n_routed_experts",
    "moe_num_shared_experts": "n_shared_experts",
}
_BIAS = "e_score_correction_bias"


def ernie4_5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _ERNIE)
    layers = repeated(fields, _attention(fields, max_model_len))
    return build_decoder(build, read_decoder(fields, layers, mlp_bias=fields.flag("use_bias")))


def paddleocr_vl(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of PaddleOCR-VL: ERNIE 4.5 in which halves are turned, each pair by an axis of its own."""
    fields = ConfigFields(checkpoint, _ERNIE)
    shape = in_images(build, fields, _attention(fields, max_model_len, style="half"), (16, 24, 24))
    return build_decoder(build, read_decoder(fields, repeated(fields, shape), mlp_bias=fields.flag("use_bias")))


def ernie4_5_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Layers that predict further tokens are not read."""
    fields = ConfigFields(renamed(checkpoint, _FIELDS), _ERNIE_MOE)
    if fields.flag("use_bias"):
        raise ModelError("use_bias is not supported together with experts; it must be false in config.json.")
    config = read_decoder(
        fields,
        repeated(fields, _attention(fields, max_model_len)),
        experts=_experts(fields),
        dense_layers=frozenset(range(fields.count("num_hidden_layers"))).difference(_sparse_layers(fields)),
    )
    return build_decoder(build, config)


def ernie4_5_vl_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of ERNIE 4.5 VL: experts for tokens of text, and others for those of images. Raises
    RefusedTypeError for several pipeline stages, of which the first alone knows these."""
    fields = ConfigFields(renamed(checkpoint, _FIELDS), _ERNIE_VL)
    if fields.flag("use_bias"):
        raise ModelError("use_bias is not supported together with experts; it must be false in config.json.")
    if build.pipeline.size > 1:
        raise RefusedTypeError("its experts for images cannot be divided into stages (--pipeline-parallel-size 1)")
    inner = fields.numbers("moe_intermediate_size")
    if len(inner) != 2:
        raise ModelError("moe_intermediate_size in config.json is not two numbers, for text and for images.")
    text, images = (
        scored_experts(
            ConfigFields({**fields.values, "moe_intermediate_size": size}), bias=_BIAS, mlp=f"mlp.{kind}_moe"
        )
        for kind, size in zip(("text", "vision"), inner, strict=True)
    )
    text = replace(text, names=replace(text.names, shared="model.layers.{layer}.mlp.shared_experts"))
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("mlp_layer_types", number, lambda kind: kind in ("dense", "sparse"), "dense or sparse")
    config = read_decoder(
        fields,
        repeated(fields, in_images(build, fields, _attention(fields, max_model_len), (22, 22, 20), time_last)),
        experts=text,
        dense_layers=frozenset([0] if kinds is None else [layer for layer in range(number) if kinds[layer] == "dense"]),
    )
    return build_decoder(
        build, config, partial(ModalityBlock, images=replace(images, shared=0)), decoder=ModalityDecoder
    )


def _attention(fields: ConfigFields, max_model_len: int, style: str = "pairs") -> AttentionShape:
    bias = fields.flag("use_bias")
    return read_attention(fields, max_model_len, style=style, bias=bias, output_bias=bias)


def _experts(fields: ConfigFields) -> Experts:
    """Chosen by their shares of a softmax plus a bias."""
    experts = scored_experts(fields, bias=_BIAS)
    names = replace(experts.names, bias=f"model.layers.{{layer}}.mlp.moe_statics.{_BIAS}")
    return replace(experts, names=names)


def _sparse_layers(fields: ConfigFields) -> Collection[int]:
    """The layers with experts. An end of -1 is the last layer."""
    first, interval = fields.count("moe_layer_start_index", least=0), fields.count("moe_layer_interval")
    last = fields.count("moe_layer_end_index", least=-1)
    end = fields.count("num_hidden_layers") if last == -1 else last + 1
    return [layer for layer in range(first, end) if (layer + 1) % interval == 0]
