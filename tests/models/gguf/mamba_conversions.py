"""What llama.cpp's converters change of the weights of models with Mamba, and the settings that these have, stated
apart from the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor

NEMOTRON_H = ("nemotron_h", "nemotron_h_moe")
FIRST, SECOND = ("mamba", "jamba"), (*NEMOTRON_H, "falcon-h1", "mamba2")
"""Those with Mamba and with Mamba 2."""


def converted_mamba(key: str, value: Tensor, config: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if name in NEMOTRON_H:
        key = key.replace("model.", "backbone.", 1)
    second = name in SECOND
    if name == "falcon-h1":
        value = value * _multiplier(key, value, config)
    if key.endswith("A_log"):
        value = -torch.exp(value)
    if second and key.endswith((".A_log", ".D")):
        value = value[:, None]
    if ".conv1d.weight" in key:
        value = value.squeeze(1)
    if second and key.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        groups = getattr(config, "mamba_n_groups", None) or config.n_groups
        value = value.view(groups, -1)
    if key.endswith("dt_bias"):
        key = key.replace("dt_bias", "dt.bias" if name in NEMOTRON_H else "dt_proj.bias")
    if key.endswith("e_score_correction_bias"):
        key = key.replace("_correction_bias", "_correction.bias")
    if name == "nemotron_h_moe" and ".experts." in key:
        key = f"blk.{key.split('.')[2]}.ffn_{'up' if 'up_proj' in key else 'down'}_exps.weight"
    yield key, value


def _multiplier(key: str, value: Tensor, config: Any) -> Tensor | float:
    of: dict[str, float] = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "q_proj": config.attention_in_multiplier,
        "k_proj": config.attention_in_multiplier * config.key_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
    }
    module = key.split(".")[-2]
    if module != "in_proj":
        return of.get(module, 1.0)
    inner, states = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    sizes = torch.tensor([inner, inner, states, states, config.mamba_n_heads])
    each = torch.tensor(config.ssm_multipliers) * config.ssm_in_multiplier
    return each.repeat_interleave(sizes)[:, None]


def write_mamba(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    """All settings of models without attention."""
    inner = config.intermediate_size if name == "mamba" else config.expand * config.hidden_size
    writer.add_context_length(2**20)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(config.state_size)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    if name == "mamba":
        writer.add_ssm_time_step_rank(config.time_step_rank)
        writer.add_ssm_dt_b_c_rms(config.model_type == "falcon_mamba")
    else:
        writer.add_ssm_time_step_rank(inner // config.head_dim)
        writer.add_ssm_group_count(config.n_groups)


def write_nemotron_h(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    kinds = config.layers_block_type
    _write_mamba2(writer, config.mamba_num_heads, config.mamba_head_dim, config.n_groups, config.ssm_state_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    heads = [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]
    writer.add_head_count_kv(heads)
    width, dense = config.intermediate_size, "mlp"
    if name == "nemotron_h_moe":
        width, dense = config.moe_intermediate_size, "moe"
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        if config.moe_latent_size:
            writer.add_moe_latent_size(config.moe_latent_size)
    writer.add_feed_forward_length([width if kind == dense else 0 for kind in kinds])


def write_falcon_h1(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    width = config.mamba_d_ssm // config.mamba_n_heads
    _write_mamba2(writer, config.mamba_n_heads, width, config.mamba_n_groups, config.mamba_d_state)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)


def write_jamba(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    attends = [kind == "full_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads if one else 0 for one in attends])
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_time_step_rank(config.mamba_dt_rank)


def _write_mamba2(writer: gguf.GGUFWriter, heads: int, width: int, groups: int, state: int) -> None:
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_inner_size(heads * width)
    writer.add_ssm_time_step_rank(heads)
