"""Qwen 3 Next and the text models of Qwen 3.5: three of four layers are a gated delta net, the others attention whose
result is gated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.layers.delta_net import ByKeyHead, ByKind, DeltaNetLayout, DeltaNetShape
from tessera.layers.mlp import ExpertNames, Experts
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.multi_token import NEXT_TOKENS, PredictorConfig, PredictorNames, check_count
from tessera.models.qwen import dense_layers
from tessera.models.reading import FULL, read_attention, read_biases, read_decoder, read_head_dim
from tessera.models.rope import RopeReader, by_axis, interleaved

LINEAR = "linear_attention"
_FURTHER_LAYERS = "mtp_num_hidden_layers", 0
"""The field of Qwen 3.5 that says how many layers predict further tokens."""

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_SHARED: dict[str, Any] = {
    "num_attention_heads": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
_EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_QWEN3_NEXT = {**_SHARED, **_EXPERTS, "num_key_value_heads": 2, "norm_topk_prob": True}
_QWEN3_5 = {**_SHARED, "num_key_value_heads": 4}
_QWEN3_5_MOE = {**_SHARED, **_EXPERTS, "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8}


def qwen3_next(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN3_NEXT)
    experts = _experts(fields, renormalise=fields.flag("norm_topk_prob"))
    dense = dense_layers(fields, fields.count("num_hidden_layers"))
    layers = _layers(build, fields, max_model_len, ByKeyHead())
    inner = fields.count("intermediate_size", 5632)
    config = read_decoder(fields, layers, inner=inner, experts=experts, dense_layers=dense)
    return _decoder(build, fields, max_model_len, config, (NEXT_TOKENS, 1))


def qwen3_5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN3_5)
    config = read_decoder(fields, _layers(build, fields, max_model_len, ByKind()))
    return _decoder(build, fields, max_model_len, config, _FURTHER_LAYERS)


def qwen3_5_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _QWEN3_5_MOE)
    experts = _experts(fields, renormalise=True)
    layers = _layers(build, fields, max_model_len, ByKind())
    config = read_decoder(fields, layers, inner=experts.inner, experts=experts)
    return _decoder(build, fields, max_model_len, config, _FURTHER_LAYERS)


def _decoder(
    build: Build, fields: ConfigFields, max_model_len: int, config: DecoderConfig, count: tuple[str, int]
) -> Decoder:
    """count: the field that says how many layers predict further tokens, and their number if it is omitted. They have
    full attention. Raises ModelError where one is wanted and there is none."""
    if not build.predicts:
        return build_decoder(build, config)
    check_count(build, fields.count(*count, least=0), count[0])
    attention = _attention(build, fields, max_model_len)
    experts = config.experts and replace(config.experts, names=_of_further_layers(config.experts.names))
    names = replace(config.names, layers="mtp.layers")
    own = replace(config, layers=(attention,), experts=experts, dense_layers=frozenset(), names=names)
    parts = PredictorNames("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
    return build_decoder(build, config, predictor=PredictorConfig(own, 0, parts, normed=True))


def _of_further_layers(names: ExpertNames) -> ExpertNames:
    return ExpertNames(**{part: name.replace("model.layers.", "mtp.layers.") for part, name in vars(names).items()})


def _layers(build: Build, fields: ConfigFields, max_model_len: int, layout: DeltaNetLayout) -> list[BlockShape]:
    attention = _attention(build, fields, max_model_len)
    delta_net = _delta_net(fields, attention, layout)
    number, interval = fields.count("num_hidden_layers"), fields.count("full_attention_interval")
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in (LINEAR, FULL), f"{LINEAR} or {FULL}")
    if kinds is None:
        kinds = [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(number)]
    shapes: dict[str, BlockShape] = {FULL: attention, LINEAR: delta_net}
    return [shapes[kind] for kind in kinds]


def _attention(build: Build, fields: ConfigFields, max_model_len: int) -> AttentionShape:
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read()
    if build.spare_positions:
        rope = by_axis(fields, rope, (11, 11, 10), interleaved)
    return read_attention(
        fields, max_model_len, rope=rope, head_norm=True, norm_offset=1.0, gated=True, **read_biases(fields)
    )


def _delta_net(fields: ConfigFields, attention: AttentionShape, layout: DeltaNetLayout) -> DeltaNetShape:
    keys, values = (fields.count(f"linear_num_{name}_heads") for name in ("key", "value"))
    if values % keys:
        raise ModelError(f"linear_num_value_heads ({values}) is not a multiple of linear_num_key_heads ({keys}).")
    return DeltaNetShape(
        hidden=attention.hidden,
        key_heads=keys,
        value_heads=values,
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", least=2),
        eps=attention.eps,
        max_positions=attention.max_positions,
        norm_offset=attention.norm_offset,
        layout=layout,
        result_eps=attention.eps,
    )


def _experts(fields: ConfigFields, *, renormalise: bool) -> Experts:
    moe = "model.layers.{layer}.mlp"
    gate, up, down = (f"{moe}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
    names = ExpertNames(
        f"{moe}.gate", gate, up, down, shared=f"{moe}.shared_expert", shared_gate=f"{moe}.shared_expert_gate"
    )
    inner = fields.count("moe_intermediate_size")
    experts = read_experts(fields, "num_experts", names, inner, renormalise=renormalise)
    return replace(experts, shared=fields.count("shared_expert_intermediate_size"))
