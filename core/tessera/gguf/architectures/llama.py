"""Llama and what is built like it, block by block."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.gguf.architectures.architecture import (
    ATTENTION,
    DENSE,
    HEAD_NORMS,
    MLP,
    GgufArchitecture,
    Names,
    Settings,
    expert_names,
)
from tessera.gguf.architectures.windows import sliding_layers
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

_NORMS_AFTER: Names = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OLMO2: Names = {
    **{own: name for own, name in ATTENTION.items() if own != "attn_norm"},
    **MLP,
    **_NORMS_AFTER,
    **HEAD_NORMS,
}
_PHI3: Names = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS: Names = {
    **ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    **expert_names("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
}


def has_biases(fields: GgufFields, file: GgufFile) -> Settings:
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _mixtral(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "sliding_window": None,
    }


def _granite(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "attention_multiplier": fields.number("attention.scale", 1.0),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
        **has_biases(fields, file),
    }


def _phi3(fields: GgufFields, file: GgufFile) -> Settings:
    window = fields.get("attention.sliding_window")
    return {"sliding_window": fields.count("attention.sliding_window") if window else None}


def _ernie(fields: GgufFields, file: GgufFile) -> Settings:
    return {"use_bias": "blk.0.attn_q.bias" in file.tensors}


def _cohere2(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "layer_norm_eps": fields.number("attention.layer_norm_epsilon"),
        "logit_scale": fields.number("logit_scale"),
        **sliding_layers(fields, every=4),
        **has_biases(fields, file),
    }


_LLAMA = GgufArchitecture("LlamaForCausalLM", "llama", DENSE, has_biases, paired_rows=True)
_MIXTRAL = GgufArchitecture("MixtralForCausalLM", "mixtral", _EXPERTS, _mixtral, paired_rows=True)


def llama(fields: GgufFields) -> GgufArchitecture:
    """Llama, or with experts Mixtral."""
    return _MIXTRAL if fields.get("expert_count") else _LLAMA


LLAMA: Mapping[str, GgufArchitecture] = {
    "llama": _LLAMA,
    "phi3": GgufArchitecture("Phi3ForCausalLM", "phi3", _PHI3, _phi3),
    "granite": GgufArchitecture("GraniteForCausalLM", "granite", DENSE, _granite, paired_rows=True),
    "smollm3": GgufArchitecture("SmolLM3ForCausalLM", "smollm3", DENSE, has_biases, paired_rows=True),
    "olmo2": GgufArchitecture("Olmo2ForCausalLM", "olmo2", _OLMO2, has_biases),
    "ernie4_5": GgufArchitecture("Ernie4_5ForCausalLM", "ernie4_5", DENSE, _ernie),
    "cohere2": GgufArchitecture("Cohere2ForCausalLM", "cohere2", {**ATTENTION, **MLP}, _cohere2),
}
"""By general.architecture. A file of `llama` is what llama() says."""
