"""DeepSeek V2, V3 and R1, and models of their form (Kimi K2, GLM-4.7-Flash): latent attention, and experts beside
shared ones after a few dense layers. Youtu and MiniCPM3: the same attention with dense
layers, and in MiniCPM3 multipliers."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.latent import LatentShape
from tessera.layers.mlp import Experts
from tessera.layers.rotary import mscale_factor
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.glm import read_groups, read_shared_experts, scored_experts
from tessera.models.multi_token import next_token_layer
from tessera.models.reading import read_decoder
from tessera.models.rope import RopeReader

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_ALIKE: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V2: dict[str, Any] = {
    **_ALIKE,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "topk_method": "greedy",
}
V3: dict[str, Any] = {
    **_ALIKE,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rope_interleave": True,
}
_GLM4_MOE_LITE: dict[str, Any] = {
    **V3,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
}
_YOUTU: dict[str, Any] = {
    **_ALIKE,
    "max_position_embeddings": 131072,
    "rope_interleave": True,
    "tie_word_embeddings": True,
}
_MINICPM3: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}
_LATENT_EPS = 1e-6
"""Of the norms within attention, whatever rms_norm_eps is, as in transformers."""
_METHODS = ("greedy", "group_limited_greedy")


def deepseek_v2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _V2)
    dense = range(fields.count("first_k_dense_replace", 0, least=0))
    return _decoder(build, fields, read_latent(fields, max_model_len), _v2_experts(fields), frozenset(dense))


def deepseek_v3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Of the layers from num_hidden_layers on, which predict further tokens, the first is read where drafts are
    wanted."""
    fields = ConfigFields(checkpoint, V3)
    dense = range(fields.count("first_k_dense_replace", least=0))
    return _decoder(build, fields, _v3_latent(fields, max_model_len), read_shared_experts(fields), frozenset(dense))


def glm4_moe_lite(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """As deepseek_v3, but mlp_layer_types says which layers have experts."""
    fields = ConfigFields(checkpoint, _GLM4_MOE_LITE)
    dense = read_dense_layers(fields, 1)
    return _decoder(build, fields, _v3_latent(fields, max_model_len), read_shared_experts(fields), dense)


def youtu(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _YOUTU)
    layers = (_v3_latent(fields, max_model_len),) * fields.count("num_hidden_layers")
    return build_decoder(build, read_decoder(fields, layers))


def minicpm3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MINICPM3)
    number, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
    shape = read_latent(fields, max_model_len, "half", hidden // fields.count("num_attention_heads"))
    config = read_decoder(
        fields,
        (shape,) * number,
        mlp_bias=fields.flag("mlp_bias"),
        embedding_scale=fields.number("scale_emb"),
        residual_multiplier=fields.number("scale_depth", number**0.5) / number**0.5,
        logits_scale=fields.count("dim_model_base", hidden) / hidden,
    )
    return build_decoder(build, config)


def read_dense_layers(fields: ConfigFields, first: int) -> frozenset[int]:
    """The layers without experts by mlp_layer_types, or so many first ones if it is omitted. Raises ModelError."""
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("mlp_layer_types", number, lambda kind: kind in ("dense", "sparse"), "dense or sparse")
    if kinds is None:
        return frozenset(range(first))
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")


def read_latent(
    fields: ConfigFields, max_model_len: int, style: str = "pairs", value_dim: int | None = None
) -> LatentShape:
    """The attention of a layer. style: as in RotarySpec. value_dim: if v_head_dim is omitted. Raises ModelError for a
    missing or invalid field."""
    nope, turned = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    rope = RopeReader(fields, turned, max_model_len).read()
    return LatentShape(
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        nope_dim=nope,
        rope_dim=turned,
        value_dim=fields.count("v_head_dim", value_dim),
        rank=fields.count("kv_lora_rank"),
        query_rank=None if fields.get("q_lora_rank") is None else fields.count("q_lora_rank"),
        scale=(nope + turned) ** -0.5 * _sharper(fields),
        rope=rope,
        max_positions=max_model_len,
        eps=fields.number("rms_norm_eps"),
        latent_eps=_LATENT_EPS,
        style=style,
        bias=fields.flag("attention_bias"),
    )


def _sharper(fields: ConfigFields) -> float:
    """What scores are multiplied by in a context longer than in training: 1 without mscale_all_dim."""
    scaling = fields.table("rope_scaling")
    said = scaling if scaling.values else fields.table("rope_parameters")
    weight = said.number("mscale_all_dim", 0.0)
    return mscale_factor(said.positive("factor"), weight) ** 2 if weight else 1.0


def _v3_latent(fields: ConfigFields, max_model_len: int) -> LatentShape:
    return read_latent(fields, max_model_len, "pairs" if fields.flag("rope_interleave") else "half")


def _v2_experts(fields: ConfigFields) -> Experts:
    """Experts that a softmax chooses; transformers never scales their weights to sum to 1."""
    method = fields.get("topk_method")
    if method not in _METHODS:
        raise ModelError(f"topk_method '{str(method)[:40]}' is not supported; supported are {', '.join(_METHODS)}.")
    if fields.flag("norm_topk_prob"):
        raise ModelError("norm_topk_prob is not supported for DeepSeek V2.")
    groups: dict[str, Any] = read_groups(fields, 1) if method == "group_limited_greedy" else {}
    return scored_experts(fields, renormalise=False, **groups)


def _decoder(
    build: Build, fields: ConfigFields, shape: LatentShape, experts: Experts, dense: frozenset[int]
) -> Decoder:
    layers = (shape,) * fields.count("num_hidden_layers")
    config = read_decoder(fields, layers, experts=experts, dense_layers=dense)
    return build_decoder(build, config, predictor=next_token_layer(build, fields, config))
