"""What llama.cpp's converters change of the weights of some architectures, and the settings that these alone have,
stated apart from the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.models.gguf.mamba_conversions import (
    FIRST,
    NEMOTRON_H,
    SECOND,
    converted_mamba,
    write_falcon_h1,
    write_jamba,
    write_mamba,
    write_nemotron_h,
)

State = dict[str, Tensor]
_GATING = {"deepseek_v2": gguf.ExpertGatingFuncType.SOFTMAX, "deepseek_v3": gguf.ExpertGatingFuncType.SIGMOID}


def converted(state: State, config: Any, name: str) -> State:
    """name: of the architecture in GGUF."""
    changed: State = {}
    for which in ("projections", "unembed_projections") if name == "gemma3n" else ():
        own = [key for key in state if key.startswith(f"model.altup_{which}.")]
        changed[f"model.altup_{which}.weight"] = torch.stack([state[key] for key in own])
        state = {key: value for key, value in state.items() if key not in own}
    if name == "gemma4":
        state = {_gemma4_name(key): value for key, value in state.items()}
    for key, value in state.items():
        change = converted_mamba if name in (*FIRST, *SECOND) else _changed
        changed.update(change(key, value, config, name))
    return changed


def _changed(key: str, value: Tensor, config: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if name in ("qwen35", "qwen35moe"):
        value = _tiled(key, value, config)
    if name in ("qwen3next", "qwen35", "qwen35moe"):
        yield from _delta_net(key, value, config)
    elif name in ("granitehybrid", "granitemoe") and any(word in key for word in ("mamba.", "input_linear", "moe.")):
        yield from _granite(key, value, config)
    elif key.endswith("correct_output_scale"):
        yield f"{key}.weight", value
    elif ".conv.conv.weight" in key:
        yield key, value.squeeze(1)
    elif key.endswith("sinks"):
        yield f"{key}.weight", value
    elif name == "llama4" and ".experts." in key:
        yield key, value.transpose(1, 2)
    elif name == "gpt-oss" and ".experts." in key:
        yield from _alternating(key, value)
    elif key.endswith("kv_b_proj.weight"):
        heads = value.view(config.num_attention_heads, -1, value.shape[-1])
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        yield key.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield key.replace("kv_b_proj", "v_b_proj"), values
    elif key.endswith("expert_bias"):
        yield f"{key}.bias", value
    elif key.endswith("e_score_correction_bias"):
        own = key.replace("_correction_bias", "_correction.bias").replace("gate.moe_statics", "moe_statics")
        yield own, value.reshape(-1)
    else:
        yield key, value


def _gemma4_name(key: str) -> str:
    names = {
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    own = key.split(".", 3)[-1]
    return f"blk.{key.split('.')[2]}.{names[own]}" if own in names else key


def _alternating(key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    kind = "bias" if key.endswith("_bias") else "weight"
    own = key.removesuffix("_bias")
    value = value if kind == "bias" else value.transpose(1, 2)
    if "gate_up" not in own:
        yield f"{own}.{kind}", value
        return
    yield own.replace("gate_up_proj", f"gate_proj.{kind}"), value[:, ::2]
    yield own.replace("gate_up_proj", f"up_proj.{kind}"), value[:, 1::2]


def _granite(key: str, value: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    number = key.split(".")[2]
    if key.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = value.chunk(2, dim=1)
        yield f"blk.{number}.ffn_gate_exps.weight", gate
        yield f"blk.{number}.ffn_up_exps.weight", up
    elif key.endswith("input_linear.weight"):
        gate, up = value.chunk(2)
        ending = "_shexp" if config.num_local_experts else ""
        yield f"blk.{number}.ffn_gate{ending}.weight", gate
        yield f"blk.{number}.ffn_up{ending}.weight", up
    elif key.endswith("gate_up_proj"):
        gate, up = value.chunk(2, dim=1)
        yield f"blk.{number}.ffn_gate_exps.weight", gate
        yield f"blk.{number}.ffn_up_exps.weight", up
    elif key.endswith("down_proj"):
        yield f"blk.{number}.ffn_down_exps.weight", value
    elif key.endswith("router.weight"):
        yield key.replace("router.weight", "router.layer.weight"), value
    elif key.endswith("A_log"):
        yield key, -torch.exp(value)[:, None]
    elif key.endswith("mamba.D"):
        yield key, value[:, None]
    elif key.endswith("dt_bias"):
        yield key.replace("dt_bias", "dt_proj.bias"), value
    elif key.endswith("conv1d.weight"):
        yield key, value.squeeze(1)
    elif key.endswith("mamba.norm.weight"):
        yield key, value.view(config.mamba_n_groups, -1)
    else:
        yield key, value


def _delta_net(key: str, value: Tensor, config: Any) -> Iterator[tuple[str, Tensor]]:
    if key.endswith("A_log"):
        yield key, -torch.exp(value)
    elif key.endswith("dt_bias"):
        yield key.replace("dt_bias", "dt_proj.bias"), value
    elif "conv1d" in key:
        yield key, value.squeeze(1)
    elif "in_proj_qkvz" in key:
        groups, of_key = config.linear_num_key_heads, config.linear_key_head_dim
        of_value = config.linear_num_value_heads // groups * config.linear_value_head_dim
        by_group = value.view(groups, -1, value.shape[-1]).split([of_key, of_key, of_value, of_value], dim=1)
        q, k, v, z = (part.flatten(0, 1) for part in by_group)
        yield key.replace("in_proj_qkvz", "in_proj_qkv"), torch.cat([q, k, v])
        yield key.replace("in_proj_qkvz", "in_proj_z"), z
    elif key.endswith("norm.weight") and "linear_attn.norm" not in key:
        yield key, value + 1
    else:
        yield key, value


def _tiled(key: str, value: Tensor, config: Any) -> Tensor:
    """The first value head of each key head, then the second of each."""
    groups, heads, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    keys = 2 * groups * config.linear_key_head_dim

    def tiled(part: Tensor, size: int) -> Tensor:
        return part.reshape(groups, heads // groups, size, *part.shape[1:]).transpose(0, 1).reshape(part.shape)

    if any(name in key for name in ("A_log", "dt_bias", "in_proj_a.", "in_proj_b.")):
        return tiled(value, 1)
    if "in_proj_z." in key:
        return tiled(value, width)
    if "in_proj_qkv." in key or "conv1d" in key:
        return torch.cat([value[:keys], tiled(value[keys:], width)])
    return tiled(value.T, width).T if "linear_attn.out_proj" in key else value


def write_own_settings(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    for names, write in _SETTINGS.items():
        if name in names:
            write(writer, config, name)


def _write_delta_net(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    kinds = config.layer_types
    writer.add_array(f"{name}.attention.recurrent_layers", [kind == "linear_attention" for kind in kinds])
    if name != "qwen35":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _write_lfm2(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_shortconv_l_cache(config.conv_L_cache)
    attends = [kind == "full_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads if one else 0 for one in attends])
    if name == "lfm2moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        return
    most, each = int(2 * config.intermediate_size / 3), config.block_multiple_of
    writer.add_feed_forward_length(-(-most // each) * each)


def _write_per_layer(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_sliding_window(config.sliding_window)
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    writer.add_sliding_window_pattern(slides)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    if name == "gemma3n":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_altup_active_idx(config.altup_active_idx)
        writer.add_altup_num_inputs(config.altup_num_inputs)
        shares = torch.tensor(config.activation_sparsity_pattern)
        writer.add_activation_sparsity_scale(torch.distributions.Normal(0, 1).icdf(shares).tolist())
        return
    full = config.per_layer_config[slides.index(False)]
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    heads = config.num_key_value_heads, full.num_key_value_heads
    writer.add_head_count_kv([heads[not one] for one in slides])
    if config.use_double_wide_mlp:
        first = config.num_hidden_layers - config.num_kv_shared_layers
        widths = [config.intermediate_size * (1 + (layer >= first)) for layer in range(config.num_hidden_layers)]
        writer.add_feed_forward_length(widths)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)


def _write_windows(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    if not getattr(config, "sliding_window", None):
        return
    writer.add_sliding_window(config.sliding_window)
    if name != "gpt-oss":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _write_logit_scale(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_logit_scale(config.logit_scale)


def _write_ministral(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    if config.model_type == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def _write_granite_moe(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    if config.model_type == "granitemoeshared":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def _write_llama4(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_feed_forward_length(config.intermediate_size_mlp)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def _write_shared_width(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    width = getattr(config, "shared_expert_intermediate_size", config.intermediate_size)
    writer.add_expert_shared_feed_forward_length(width)


def _write_routed(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(bool(config.norm_topk_prob))
    writer.add_expert_group_count(config.n_group or 1)
    writer.add_expert_group_used_count(config.topk_group or 1)


def _write_latent(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_expert_gating_func(_GATING[config.model_type])
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if (mscale := config.rope_parameters.get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)


def _write_granite(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    mamba = [kind in ("mamba", "linear_attention") for kind in config.layer_types]
    writer.add_head_count_kv([0 if one else config.num_key_value_heads for one in mamba])
    if config.num_local_experts:
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    else:
        writer.add_feed_forward_length(config.shared_intermediate_size)


def _write_ernie_experts(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    writer.add_expert_count(config.moe_num_experts)
    writer.add_expert_used_count(config.moe_k)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.moe_num_shared_experts)
    writer.add_leading_dense_block_count(config.moe_layer_start_index)
    writer.add_interleave_moe_layer_step(config.moe_layer_interval)


_SETTINGS = {
    ("qwen3next", "qwen35", "qwen35moe"): _write_delta_net,
    ("lfm2", "lfm2moe"): _write_lfm2,
    ("gpt-oss", "cohere2", "exaone4", "olmo2"): _write_windows,
    ("cohere2", "command-r"): _write_logit_scale,
    ("mistral3",): _write_ministral,
    ("llama4",): _write_llama4,
    ("granitemoe",): _write_granite_moe,
    ("qwen2moe", "hunyuan-moe"): _write_shared_width,
    ("glm4moe", "deepseek2", "dots1"): _write_routed,
    ("deepseek2",): _write_latent,
    ("granitehybrid",): _write_granite,
    NEMOTRON_H: write_nemotron_h,
    ("falcon-h1",): write_falcon_h1,
    ("jamba",): write_jamba,
    ("mamba", "mamba2"): write_mamba,
    ("gemma3n", "gemma4"): _write_per_layer,
    ("ernie4_5-moe",): _write_ernie_experts,
}
"""What writes the settings that some architectures alone have."""
