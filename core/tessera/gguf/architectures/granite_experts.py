"""Granite with experts: of attention alone, and Granite 4, which has Mamba 2 too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import ATTENTION, GgufArchitecture, Join, Names, Settings, expert_names
from tessera.gguf.architectures.llama import has_biases
from tessera.gguf.architectures.mamba import mamba2_changes, mamba2_names
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.tensors import ComputedTensor, NamedTensor

_SHARED = "expert_shared_feed_forward_length"
_HYBRID: Names = {
    **ATTENTION,
    **mamba2_names("mamba"),
    "ffn_norm": "post_attention_layernorm",
    "ffn_down": "shared_mlp.output_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
    **expert_names("block_sparse_moe.router.layer", "block_sparse_moe.experts"),
}
_EXPERTS = "block_sparse_moe"
_MOE: Names = {
    **ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": f"{_EXPERTS}.router.layer",
    "ffn_down_exps": f"{_EXPERTS}.output_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}


def _multipliers(fields: GgufFields) -> Settings:
    return {
        "attention_multiplier": fields.number("attention.scale", 1.0),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
    }


def _moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_multipliers(fields),
        **has_biases(fields, file),
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "shared_intermediate_size": fields.count_if_any(_SHARED),
    }


def _hybrid(fields: GgufFields, file: GgufFile) -> Settings:
    """Layers without key heads are Mamba's. Attention of the published ones knows no positions."""
    hidden, inner = fields.count("embedding_length"), fields.count("ssm.inner_size")
    heads, kv_heads = fields.count("ssm.time_step_rank"), fields.per_layer("attention.head_count_kv")
    if kv_heads is None:
        raise ModelError(f"{fields.key('attention.head_count_kv')} of the GGUF file does not say which layers attend.")
    if fields.get("rope.scaling.finetuned"):
        raise ModelError("the GGUF file is of Bamba, whose attention knows positions; it is not supported.")
    experts = fields.count_if_any("expert_count")
    own = fields.largest("feed_forward_length")
    mamba = next((layer for layer, number in enumerate(kv_heads) if not number), 0)
    attends = next((layer for layer, number in enumerate(kv_heads) if number), 0)
    return {
        "layer_types": ["attention" if number else "mamba" for number in kv_heads],
        "position_embedding_type": "nope",
        "num_local_experts": experts,
        "num_experts_per_tok": fields.count_if_any("expert_used_count"),
        "shared_intermediate_size": fields.count(_SHARED) if experts else own,
        "attention_bias": f"blk.{attends}.attn_q.bias" in file.tensors,
        **_multipliers(fields),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // hidden,
        "mamba_n_groups": fields.count("ssm.group_count"),
        "mamba_d_state": fields.count("ssm.state_size"),
        "mamba_d_conv": fields.count("ssm.conv_kernel"),
        "mamba_conv_bias": f"blk.{mamba}.ssm_conv1d.bias" in file.tensors,
        "mamba_proj_bias": f"blk.{mamba}.ssm_in.bias" in file.tensors,
    }


def _hybrid_joins(fields: GgufFields) -> Mapping[str, Join]:
    """transformers has gates and ups of the MLP that all tokens take in one matrix."""
    ending = "_shexp" if fields.get("expert_count") else ""
    return {"shared_mlp.input_linear.weight": Join((f"ffn_gate{ending}", f"ffn_up{ending}"), _rows)}


def _rows(gate: NamedTensor, up: NamedTensor) -> ComputedTensor:
    if len(gate.shape) != 2 or gate.shape != up.shape:
        raise ModelError(f"'{gate.source[:80]}' of the GGUF file and what belongs to it have unlike shapes.")
    return ComputedTensor((2 * gate.shape[0], gate.shape[1]), (gate, up), lambda *parts: np.concatenate(parts))


def _moe_joins(fields: GgufFields) -> Mapping[str, Join]:
    """transformers has gates and ups of an MLP, and of all experts, in one tensor."""
    return {
        f"{_EXPERTS}.input_linear.weight": Join(("ffn_gate_exps", "ffn_up_exps"), _experts),
        "shared_mlp.input_linear.weight": Join(("ffn_gate_shexp", "ffn_up_shexp"), _rows),
    }


def _experts(gate: NamedTensor, up: NamedTensor) -> ComputedTensor:
    if len(gate.shape) != 3 or gate.shape != up.shape:
        raise ModelError(f"'{gate.source[:80]}' of the GGUF file and what belongs to it have unlike shapes.")
    experts, inner, hidden = gate.shape
    return ComputedTensor((experts, 2 * inner, hidden), (gate, up), lambda *parts: np.concatenate(parts, axis=1))


def _moe_architecture(name: str, model_type: str) -> GgufArchitecture:
    return GgufArchitecture(name, model_type, _MOE, _moe, paired_rows=True, joins=_moe_joins)


_GRANITE_MOE = _moe_architecture("GraniteMoeForCausalLM", "granitemoe")
_GRANITE_MOE_SHARED = _moe_architecture("GraniteMoeSharedForCausalLM", "granitemoeshared")


def granite_moe(fields: GgufFields) -> GgufArchitecture:
    """With an MLP that all tokens take beside experts, or without."""
    return _GRANITE_MOE_SHARED if fields.get(_SHARED) else _GRANITE_MOE


GRANITE_EXPERTS: Mapping[str, GgufArchitecture] = {
    "granitemoe": _GRANITE_MOE,
    "granitehybrid": GgufArchitecture(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        _HYBRID,
        _hybrid,
        paired_rows=True,
        changes=mamba2_changes,
        joins=_hybrid_joins,
    ),
}
"""By general.architecture. A file of `granitemoe` is what granite_moe() says."""
