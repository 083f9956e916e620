"""Llama and what is built like it, block by block."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import (
    ATTENTION,
    DENSE,
    ENDS,
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
from tessera.gguf.rope import rope_settings

_NORMS_AFTER: Names = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_AFTER: Names = {
    **{own: name for own, name in ATTENTION.items() if own != "attn_norm"},
    **MLP,
    **_NORMS_AFTER,
    **HEAD_NORMS,
}
_SEED_OSS: Names = {**ATTENTION, "post_attention_norm": "post_attention_layernorm", **MLP}
_GLM4: Names = {
    **ATTENTION,
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
HUNYUAN_NORMS: Names = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_UNGATED: Names = {name: own for name, own in DENSE.items() if name != "ffn_gate"}
_STARCODER2: Names = {**_UNGATED, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_ENDS_WITH_BIAS: Names = {**ENDS, "output_norm.bias": "model.norm.bias"}
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


def _all_biases(fields: GgufFields, file: GgufFile) -> Settings:
    return {**has_biases(fields, file), "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}


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


_LLAMA = GgufArchitecture("LlamaForCausalLM", "llama", DENSE, _all_biases, paired_rows=True)


def _mistral(fields: GgufFields, file: GgufFile) -> Settings:
    return {"sliding_window": None}


def _olmo3(fields: GgufFields, file: GgufFile) -> Settings:
    """Its scaled rotary embedding is that of layers without windows alone."""
    rope = rope_settings(fields, file)
    theta = rope["rope_theta"]
    whole = {"rope_type": "default", **rope.get("rope_scaling", {}), "rope_theta": theta}
    swa = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", theta)}
    return {
        **sliding_layers(fields, every=4),
        **has_biases(fields, file),
        "rope_scaling": None,
        "rope_parameters": {"sliding_attention": swa, "full_attention": whole},
    }


def _ministral(fields: GgufFields, file: GgufFile) -> Settings:
    """Queries grow with the position. Published models have mscale alike with and without all dimensions."""
    rope = rope_settings(fields, file)
    scaling = rope.get("rope_scaling")
    if scaling is None or scaling["rope_type"] != "yarn":
        raise ModelError("the GGUF file has a temperature of attention, but no YaRN, which it begins with.")
    log = fields.number("rope.scaling.yarn_log_multiplier", 0.0)
    mscale = {"mscale": 1.0, "mscale_all_dim": log} if log else {}
    growth = {"llama_4_scaling_beta": fields.number("attention.temperature_scale")}
    return {**rope, "rope_scaling": {**scaling, **mscale, **growth}, "sliding_window": None}


def _exaone4(fields: GgufFields, file: GgufFile) -> Settings:
    if fields.get("attention.sliding_window"):
        return sliding_layers(fields, every=4)
    return {"sliding_window": None, "layer_types": ["full_attention"] * fields.num_layers}


def _seed_oss(fields: GgufFields, file: GgufFile) -> Settings:
    return {**has_biases(fields, file), "attention_out_bias": "blk.0.attn_output.bias" in file.tensors}


def _glm4(fields: GgufFields, file: GgufFile) -> Settings:
    if fields.get("rope.dimension_sections") is not None:
        raise ModelError(
            "the GGUF file is the text model of a GLM that reads images, whose heads are stored in another order; "
            "it is not supported."
        )
    return has_biases(fields, file)


def _nemotron(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_all_biases(fields, file), "norm_eps": fields.number("attention.layer_norm_epsilon")}


def _starcoder2(fields: GgufFields, file: GgufFile) -> Settings:
    """Files do not say how far a token sees: as far as in published models."""
    return {
        "norm_epsilon": fields.number("attention.layer_norm_epsilon"),
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": 4096,
    }


def _cohere(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "layer_norm_eps": fields.number("attention.layer_norm_epsilon"),
        "logit_scale": fields.number("logit_scale", 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        **has_biases(fields, file),
    }


_MIXTRAL = GgufArchitecture("MixtralForCausalLM", "mixtral", _EXPERTS, _mixtral, paired_rows=True)


def llama(fields: GgufFields) -> GgufArchitecture:
    """Llama, or with experts Mixtral."""
    return _MIXTRAL if fields.get("expert_count") else _LLAMA


_OLMO_2 = GgufArchitecture("Olmo2ForCausalLM", "olmo2", _AFTER, has_biases)
_OLMO_3 = GgufArchitecture("Olmo3ForCausalLM", "olmo3", _AFTER, _olmo3)


def olmo2(fields: GgufFields) -> GgufArchitecture:
    """OLMo 2, or with windows OLMo 3."""
    return _OLMO_3 if fields.get("attention.sliding_window") else _OLMO_2


_MISTRAL = GgufArchitecture("MistralForCausalLM", "mistral", DENSE, _mistral, paired_rows=True)
_MINISTRAL = GgufArchitecture("Ministral3ForCausalLM", "ministral3", DENSE, _ministral, paired_rows=True)


def mistral3(fields: GgufFields) -> GgufArchitecture:
    """Mistral, or Ministral 3, whose attention has a temperature."""
    return _MINISTRAL if fields.get("attention.temperature_scale") else _MISTRAL


LLAMA: Mapping[str, GgufArchitecture] = {
    "llama": _LLAMA,
    "mistral3": _MISTRAL,
    "phi3": GgufArchitecture("Phi3ForCausalLM", "phi3", _PHI3, _phi3),
    "granite": GgufArchitecture("GraniteForCausalLM", "granite", DENSE, _granite, paired_rows=True),
    "smollm3": GgufArchitecture("SmolLM3ForCausalLM", "smollm3", DENSE, has_biases, paired_rows=True),
    "olmo2": _OLMO_2,
    "arcee": GgufArchitecture("ArceeForCausalLM", "arcee", _UNGATED, _all_biases, paired_rows=True),
    "nemotron": GgufArchitecture(
        "NemotronForCausalLM", "nemotron", _UNGATED, _nemotron, norm_offset=1.0, ends=_ENDS_WITH_BIAS
    ),
    "starcoder2": GgufArchitecture(
        "Starcoder2ForCausalLM", "starcoder2", _STARCODER2, _starcoder2, ends=_ENDS_WITH_BIAS
    ),
    "exaone4": GgufArchitecture("Exaone4ForCausalLM", "exaone4", _AFTER, _exaone4),
    "seed_oss": GgufArchitecture("SeedOssForCausalLM", "seed_oss", _SEED_OSS, _seed_oss),
    "glm4": GgufArchitecture("Glm4ForCausalLM", "glm4", _GLM4, _glm4),
    "hunyuan-dense": GgufArchitecture(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", {**DENSE, **HUNYUAN_NORMS}, has_biases
    ),
    "command-r": GgufArchitecture("CohereForCausalLM", "cohere", {**ATTENTION, **MLP, **HEAD_NORMS}, _cohere),
    "ernie4_5": GgufArchitecture("Ernie4_5ForCausalLM", "ernie4_5", DENSE, _ernie),
    "cohere2": GgufArchitecture("Cohere2ForCausalLM", "cohere2", {**ATTENTION, **MLP}, _cohere2),
}
"""By general.architecture. Files of `llama`, `mistral3` and `olmo2` are what the functions of these names say."""
