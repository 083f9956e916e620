"""Granite 4: Mamba 2 and attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import ATTENTION, GgufArchitecture, Join, Names, Settings, expert_names
from tessera.gguf.architectures.mamba import mamba2_changes, mamba2_names
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.tensors import ComputedTensor, NamedTensor

_TENSORS: Names = {
    **ATTENTION,
    **mamba2_names("mamba"),
    "ffn_norm": "post_attention_layernorm",
    "ffn_down": "shared_mlp.output_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
    **expert_names("block_sparse_moe.router.layer", "block_sparse_moe.experts"),
}


def _settings(fields: GgufFields, file: GgufFile) -> Settings:
    """Layers without key heads are Mamba's. Attention of the published ones knows no positions."""
    hidden, inner = fields.count("embedding_length"), fields.count("ssm.inner_size")
    heads, kv_heads = fields.count("ssm.time_step_rank"), fields.per_layer("attention.head_count_kv")
    if kv_heads is None:
        raise ModelError(f"{fields.key('attention.head_count_kv')} of the GGUF file does not say which layers attend.")
    experts = fields.get("expert_count") or 0
    own, shared = fields.largest("feed_forward_length"), "expert_shared_feed_forward_length"
    mamba = next((layer for layer, number in enumerate(kv_heads) if not number), 0)
    attends = next((layer for layer, number in enumerate(kv_heads) if number), 0)
    return {
        "layer_types": ["attention" if number else "mamba" for number in kv_heads],
        "position_embedding_type": "nope",
        "num_local_experts": experts,
        "num_experts_per_tok": fields.get("expert_used_count") or 0,
        "shared_intermediate_size": fields.count(shared) if experts else own,
        "attention_bias": f"blk.{attends}.attn_q.bias" in file.tensors,
        "attention_multiplier": fields.number("attention.scale", 1.0),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden,
        "mamba_n_groups": fields.count("ssm.group_count"),
        "mamba_d_state": fields.count("ssm.state_size"),
        "mamba_d_conv": fields.count("ssm.conv_kernel"),
        "mamba_conv_bias": f"blk.{mamba}.ssm_conv1d.bias" in file.tensors,
        "mamba_proj_bias": f"blk.{mamba}.ssm_in.bias" in file.tensors,
    }


def _joins(fields: GgufFields) -> Mapping[str, Join]:
    """transformers has gates and ups of the MLP that all tokens take in one matrix."""
    ending = "_shexp" if fields.get("expert_count") else ""
    return {"shared_mlp.input_linear.weight": Join((f"ffn_gate{ending}", f"ffn_up{ending}"), _rows)}


def _rows(gate: NamedTensor, up: NamedTensor) -> ComputedTensor:
    if len(gate.shape) != 2 or gate.shape != up.shape:
        raise ModelError(f"'{gate.source[:80]}' of the GGUF file and what belongs to it have unlike shapes.")
    return ComputedTensor((2 * gate.shape[0], gate.shape[1]), (gate, up), lambda *parts: np.concatenate(parts))


GRANITE_HYBRID: Mapping[str, GgufArchitecture] = {
    "granitehybrid": GgufArchitecture(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        _TENSORS,
        _settings,
        paired_rows=True,
        changes=mamba2_changes,
        joins=_joins,
    ),
}
"""By general.architecture."""
