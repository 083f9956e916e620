"""Qwen: those with attention alone, and those that mix it with gated delta nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from tessera.gguf.architectures.architecture import (
    ATTENTION,
    DENSE,
    HEAD_NORMS,
    MLP,
    GgufArchitecture,
    Join,
    Names,
    Settings,
    expert_names,
)
from tessera.gguf.architectures.llama import has_biases
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.rope import rope_settings
from tessera.gguf.tensors import ComputedTensor, Floats, GgufWeight, NamedTensor, Order, depthwise, log_decay

_EXPERTS: Names = expert_names("mlp.gate", "mlp.experts")
_SHARED: Names = {
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}
_DELTA_NET: Names = {
    **ATTENTION,
    **HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_APART: Names = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
_AXES = [11, 11, 10]
"""Pairs of a head that turn with each of the positions on three axes, of all published models with delta nets."""


def _qwen2(fields: GgufFields, file: GgufFile) -> Settings:
    return {"use_sliding_window": False}


def _qwen3(fields: GgufFields, file: GgufFile) -> Settings:
    return {"use_sliding_window": False, **has_biases(fields, file)}


def _experts(fields: GgufFields) -> Settings:
    return {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_qwen2(fields, file), **_shared(fields), "norm_topk_prob": False}


def _qwen3_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_qwen3(fields, file), **_experts(fields)}


def _delta_net(fields: GgufFields, file: GgufFile) -> Settings:
    every = fields.count("full_attention_interval", 4)
    kinds = fields.per_layer("attention.recurrent_layers")
    if kinds is None:
        kinds = [bool((layer + 1) % every) for layer in range(fields.num_layers)]
    attends = next((layer for layer, recurrent in enumerate(kinds) if not recurrent), 0)
    heads = fields.count("ssm.time_step_rank")
    return {
        "layer_types": ["linear_attention" if recurrent else "full_attention" for recurrent in kinds],
        "linear_conv_kernel_dim": fields.count("ssm.conv_kernel"),
        "linear_key_head_dim": fields.count("ssm.state_size"),
        "linear_num_key_heads": fields.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": fields.count("ssm.inner_size") // heads,
        "attention_bias": f"blk.{attends}.attn_q.bias" in file.tensors,
    }


def _shared(fields: GgufFields) -> Settings:
    return {**_experts(fields), "shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length")}


def _qwen3_next(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_delta_net(fields, file), **_shared(fields)}


def _qwen3_5(fields: GgufFields, file: GgufFile) -> Settings:
    said = fields.get("rope.dimension_sections")
    axes = list(said)[:3] if isinstance(said, list) and len(said) >= 3 else _AXES
    rope = rope_settings(fields, file)
    scaling = {"rope_type": "default", **rope.pop("rope_scaling", {})}
    by_axis = {"mrope_section": axes, "mrope_interleaved": True}
    return {**_delta_net(fields, file), "rope_parameters": {**scaling, **rope, **by_axis}}


def _qwen3_5_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_qwen3_5(fields, file), **_shared(fields)}


# ---- what converters change of delta nets


def _same(weight: NamedTensor) -> NamedTensor:
    return weight


def _row(weight: NamedTensor) -> NamedTensor:
    """A matrix of one row, which some files have as a vector."""
    return weight if len(weight.shape) > 1 else replace(weight, shape=(1, *weight.shape))


def _row_changes(fields: GgufFields) -> Mapping[str, Callable[[NamedTensor], GgufWeight]]:
    return {"ffn_gate_inp_shexp": _row}


def _next_changes(fields: GgufFields) -> Mapping[str, Callable[[NamedTensor], GgufWeight]]:
    return {"ssm_a": log_decay, "ssm_conv1d": depthwise, "ssm_norm": _same, **_row_changes(fields)}


def _tiled_changes(fields: GgufFields) -> Mapping[str, Callable[[NamedTensor], GgufWeight]]:
    """transformers has the value heads of a key head one behind the other; the file has the first of each, then the
    second of each."""
    key_heads, heads = fields.count("ssm.group_count"), fields.count("ssm.time_step_rank")
    if heads % key_heads or heads == key_heads:
        return _next_changes(fields)
    width, keys = fields.count("ssm.inner_size") // heads, 2 * key_heads * fields.count("ssm.state_size")
    each = np.arange(heads).reshape(heads // key_heads, key_heads).T.reshape(-1)
    values = (each[:, None] * width + np.arange(width)).reshape(-1)
    behind_keys = np.concatenate([np.arange(keys), keys + values])

    def rows(order: Order) -> Callable[[NamedTensor], NamedTensor]:
        return lambda weight: replace(weight, row_order=order)

    def elements(order: Order) -> Callable[[NamedTensor], NamedTensor]:
        return lambda weight: replace(weight, order=order)

    return {
        **_next_changes(fields),
        "ssm_a": lambda weight: log_decay(replace(weight, order=each)),
        "ssm_dt": elements(each),
        "ssm_conv1d": lambda weight: depthwise(replace(weight, row_order=behind_keys)),
        "ssm_out": elements(values),
        "attn_qkv": rows(behind_keys),
        "attn_gate": rows(values),
        "ssm_alpha": rows(each),
        "ssm_beta": rows(each),
    }


def _joined_inputs(fields: GgufFields) -> Mapping[str, Join]:
    """transformers has queries, keys, values and gates of a key head one behind the other; the file has those of all
    heads."""
    heads, key = fields.count("ssm.group_count"), fields.count("ssm.state_size")
    value = fields.count("ssm.inner_size") // heads

    def join(qkv: NamedTensor, gate: NamedTensor) -> ComputedTensor:
        def compute(joined: Floats, gates: Floats) -> Floats:
            hidden = joined.shape[1]
            queries, keys, values = np.split(joined, [heads * key, 2 * heads * key])
            sizes = ((queries, key), (keys, key), (values, value), (gates, value))
            return np.concatenate([part.reshape(heads, size, hidden) for part, size in sizes], axis=1)

        return ComputedTensor((heads * 2 * (key + value), qkv.shape[1]), (qkv, gate), compute)

    return {"linear_attn.in_proj_qkvz.weight": Join(("attn_qkv", "attn_gate"), join)}


_QWEN2 = GgufArchitecture("Qwen2ForCausalLM", "qwen2", DENSE, _qwen2)
_QWEN3 = GgufArchitecture("Qwen3ForCausalLM", "qwen3", {**DENSE, **HEAD_NORMS}, _qwen3)
QWEN: Mapping[str, GgufArchitecture] = {
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2moe": GgufArchitecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        {**ATTENTION, "ffn_norm": "post_attention_layernorm", **_EXPERTS, **_SHARED},
        _qwen2_moe,
        changes=_row_changes,
    ),
    "qwen3moe": GgufArchitecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**ATTENTION, "ffn_norm": "post_attention_layernorm", **HEAD_NORMS, **_EXPERTS},
        _qwen3_moe,
    ),
    "qwen2vl": _QWEN2,
    "qwen3vl": _QWEN3,
    "qwen3next": GgufArchitecture(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        {**_DELTA_NET, "ssm_ba": "linear_attn.in_proj_ba", **_EXPERTS, **_SHARED},
        _qwen3_next,
        norm_offset=1.0,
        changes=_next_changes,
        joins=_joined_inputs,
    ),
    "qwen35": GgufArchitecture(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        {**_DELTA_NET, **_APART, **MLP},
        _qwen3_5,
        norm_offset=1.0,
        changes=_tiled_changes,
    ),
    "qwen35moe": GgufArchitecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        {**_DELTA_NET, **_APART, **_EXPERTS, **_SHARED},
        _qwen3_5_moe,
        norm_offset=1.0,
        changes=_tiled_changes,
    ),
}
"""By general.architecture."""
