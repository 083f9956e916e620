"""Granite 4 H, and Bamba, which it follows: most layers are a Mamba 2, the others attention. Granite has multipliers,
and an MLP that every token uses, beside experts or alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.layers.mamba2 import Mamba2Shape
from tessera.layers.mlp import ExpertNames, Experts, GatedNames
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.reading import read_attention, read_biases, read_decoder, read_head_dim
from tessera.models.rope import RopeReader

MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""What layer_types says of layers, then and now."""

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}
_GRANITE: dict[str, Any] = {
    **_MAMBA,
    "intermediate_size": 11008,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
}
_BAMBA: dict[str, Any] = {
    **_MAMBA,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.5,
}
_NO_LIMIT = (math.inf, None, {"__float__": "Infinity"})
"""How a config.json writes infinity, which JSON has no number for."""
_JOINED = GatedNames(joined="input_linear", down="output_linear")


def granite_hybrid(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _GRANITE)
    number, scale = fields.count("num_hidden_layers"), fields.number("attention_multiplier", 1.0)
    attention = read_attention(fields, max_model_len, scale=scale, **read_biases(fields))
    if fields.get("position_embedding_type") != "rope":
        attention = replace(attention, rope=None)
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in (*MAMBA, *ATTENTION), "mamba or attention")
    attends = [False] * number if kinds is None else [kind in ATTENTION for kind in kinds]
    config = read_decoder(
        fields,
        _layers(fields, attention, attends),
        inner=fields.count("shared_intermediate_size"),
        experts=_experts(fields) if fields.count("num_local_experts", least=0) else None,
        names=DecoderNames(mlp="shared_mlp", gated=_JOINED),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )
    return build_decoder(build, config)


def bamba(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _BAMBA)
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read()
    attention = read_attention(fields, max_model_len, rope=rope, **read_biases(fields))
    chosen = fields.numbers("attn_layer_indices")
    attends = [layer in chosen for layer in range(fields.count("num_hidden_layers"))]
    names = DecoderNames(norm="model.final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")
    layers = _layers(fields, attention, attends)
    return build_decoder(build, read_decoder(fields, layers, mlp_bias=fields.flag("mlp_bias"), names=names))


def _layers(fields: ConfigFields, attention: AttentionShape, attends: Sequence[bool]) -> list[BlockShape]:
    mamba = read_mamba2(fields, attention)
    return [attention if one else mamba for one in attends]


def read_mamba2(
    fields: ConfigFields, attention: AttentionShape, inner: int | None = None, **differs: Any
) -> Mamba2Shape:
    """The mixer of a layer. attention: of the same model. inner: elements of all heads; None: mamba_expand says.
    differs: fields of Mamba2Shape to override. Raises ModelError for a missing or invalid field, and for sizes that do
    not divide evenly."""
    heads, groups = fields.count("mamba_n_heads"), fields.count("mamba_n_groups")
    said = "mamba_expand times hidden_size" if inner is None else "mamba_d_ssm"
    inner = fields.count("mamba_expand") * attention.hidden if inner is None else inner
    head_dim = inner // heads if fields.get("mamba_d_head") == "auto" else fields.count("mamba_d_head")
    if heads * head_dim != inner:
        raise ModelError(f"mamba_n_heads ({heads}) heads are not {said} ({inner}) elements.")
    if heads % groups:
        raise ModelError(f"mamba_n_heads ({heads}) is not a multiple of mamba_n_groups ({groups}).")
    if fields.activation("hidden_act", "silu") != "silu":
        raise ModelError("a hidden_act other than silu is not supported with mamba.")
    values: dict[str, Any] = {
        "hidden": attention.hidden,
        "heads": heads,
        "head_dim": head_dim,
        "groups": groups,
        "state_dim": fields.count("mamba_d_state"),
        "kernel": fields.count("mamba_d_conv", least=2),
        "eps": attention.eps,
        "max_positions": attention.max_positions,
        "bias": fields.flag("mamba_proj_bias"),
        "output_bias": fields.flag("mamba_proj_bias"),
        "conv_bias": fields.flag("mamba_conv_bias"),
        "step_limits": read_step_limits(fields),
    }
    return Mamba2Shape(**{**values, **differs})


def read_step_limits(fields: ConfigFields) -> tuple[float, float]:
    """time_step_limit: of dt; all if omitted."""
    said = fields.get("time_step_limit")
    if said is None:
        return 0.0, math.inf
    if not isinstance(said, list) or len(said) != 2:
        raise ModelError("time_step_limit in config.json is not a list of two numbers.")
    least, most = (ConfigFields({"time_step_limit": bound}) for bound in said)
    return least.number("time_step_limit"), math.inf if said[1] in _NO_LIMIT else most.number("time_step_limit")


def _experts(fields: ConfigFields) -> Experts:
    layer = "model.layers.{layer}"
    moe = f"{layer}.block_sparse_moe"
    gate, up, down = (f"{moe}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
    names = ExpertNames(f"{moe}.router.layer", gate, up, down, shared=f"{layer}.shared_mlp")
    experts = read_experts(fields, "num_local_experts", names, fields.count("intermediate_size"))
    return replace(experts, shared=fields.count("shared_intermediate_size"), shared_names=_JOINED)
