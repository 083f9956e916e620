"""The architectures of GGUF files that are served: for each, transformers' class, its config.json from the file's
settings, and transformers' names of its tensors.

The facts are those of llama.cpp's converters (conversion/) and of its loader (src/llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.errors import ModelError, printable
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

Settings = dict[str, Any]

_ATTENTION = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
_ATTENTION |= {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_DENSE = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_MLP}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_SANDWICH = {**_ATTENTION, **_MLP, **_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


@dataclass(frozen=True)
class GgufArchitecture:
    """How a GGUF file holds the models of one class of transformers."""

    # transformers' class
    name: str
    model_type: str
    # transformers' name of each tensor of a layer, by GGUF's, without the layer and without ".weight"; {}: the expert
    tensors: Mapping[str, str]
    # the fields of config.json that not all architectures have
    settings: Callable[[GgufFields, GgufFile], Settings] = lambda fields, file: {}
    # the rows of q and k are stored in pairs, as llama.cpp rotates them
    paired_rows: bool = False
    # what the file's norms have more than transformers'
    norm_offset: float = 0.0


def _biased(fields: GgufFields, file: GgufFile) -> Settings:
    return {"attention_bias": "blk.0.attn_q.bias" in file.tensors}


def _qwen2(fields: GgufFields, file: GgufFile) -> Settings:
    return {"use_sliding_window": False}


def _qwen3(fields: GgufFields, file: GgufFile) -> Settings:
    return {"use_sliding_window": False, **_biased(fields, file)}


def _mixtral(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "sliding_window": None,
    }


def _qwen3_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_qwen3(fields, file),
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _granite(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "attention_multiplier": fields.number("attention.scale", 1.0),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
        **_biased(fields, file),
    }


def _phi3(fields: GgufFields, file: GgufFile) -> Settings:
    window = fields.get("attention.sliding_window")
    return {"sliding_window": fields.count("attention.sliding_window") if window else None}


def _gemma2(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "sliding_window": fields.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(fields, largest=46),
    }


def _gemma3(fields: GgufFields, file: GgufFile) -> Settings:
    pattern = fields.get("attention.sliding_window_pattern")
    kinds: Settings = {"sliding_window_pattern": 6}
    if isinstance(pattern, list):
        kinds = {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    elif pattern is not None:
        kinds = {"sliding_window_pattern": fields.count("attention.sliding_window_pattern")}
    return {
        **kinds,
        "sliding_window": fields.count("attention.sliding_window", 1024),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": fields.get("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(fields, largest=62),
    }


def _query_scalar(fields: GgufFields, largest: int) -> int:
    """What queries are divided by the root of. The file does not say: in the largest model of the family, by its number
    of layers, it is the width of a head as hidden_size has room for it; in the others that of a head."""
    if fields.count("block_count") == largest:
        return fields.count("embedding_length") // fields.count("attention.head_count")
    return fields.count("attention.key_length")


_LLAMA = GgufArchitecture("LlamaForCausalLM", "llama", _DENSE, _biased, paired_rows=True)
_MIXTRAL = GgufArchitecture(
    "MixtralForCausalLM",
    "mixtral",
    {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_MIXTRAL_EXPERTS},
    _mixtral,
    paired_rows=True,
)

ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        "llama": _LLAMA,
        "qwen2": GgufArchitecture("Qwen2ForCausalLM", "qwen2", _DENSE, _qwen2),
        "qwen3": GgufArchitecture("Qwen3ForCausalLM", "qwen3", {**_DENSE, **_HEAD_NORMS}, _qwen3),
        "qwen3moe": GgufArchitecture(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            {**_ATTENTION, "ffn_norm": "post_attention_layernorm", **_HEAD_NORMS, **_EXPERTS},
            _qwen3_moe,
        ),
        "qwen2vl": GgufArchitecture("Qwen2ForCausalLM", "qwen2", _DENSE, _qwen2),
        "qwen3vl": GgufArchitecture("Qwen3ForCausalLM", "qwen3", {**_DENSE, **_HEAD_NORMS}, _qwen3),
        "gemma": GgufArchitecture("GemmaForCausalLM", "gemma", _DENSE, norm_offset=1.0),
        "gemma2": GgufArchitecture("Gemma2ForCausalLM", "gemma2", _SANDWICH, _gemma2, norm_offset=1.0),
        "gemma3": GgufArchitecture(
            "Gemma3ForCausalLM", "gemma3_text", {**_SANDWICH, **_HEAD_NORMS}, _gemma3, norm_offset=1.0
        ),
        "phi3": GgufArchitecture(
            "Phi3ForCausalLM",
            "phi3",
            {
                "attn_norm": "input_layernorm",
                "attn_qkv": "self_attn.qkv_proj",
                "attn_output": "self_attn.o_proj",
                "ffn_norm": "post_attention_layernorm",
                "ffn_up": "mlp.gate_up_proj",
                "ffn_down": "mlp.down_proj",
            },
            _phi3,
        ),
        "granite": GgufArchitecture("GraniteForCausalLM", "granite", _DENSE, _granite, paired_rows=True),
        "smollm3": GgufArchitecture("SmolLM3ForCausalLM", "smollm3", _DENSE, _biased, paired_rows=True),
        "olmo2": GgufArchitecture(
            "Olmo2ForCausalLM",
            "olmo2",
            {**{gguf: name for gguf, name in _ATTENTION.items() if gguf != "attn_norm"}, **_MLP, **_NORMS_AFTER}
            | _HEAD_NORMS,
            _biased,
        ),
    }
)
"""By general.architecture."""


def architecture_of(fields: GgufFields, file: GgufFile) -> GgufArchitecture:
    """Raises ModelError for one that is not served, naming it."""
    found = ARCHITECTURES.get(fields.architecture)
    if found is None:
        raise ModelError(
            f"'{printable(file.path)}' is of the architecture '{printable(fields.architecture, 60)}', which is not "
            f"supported; supported are {', '.join(ARCHITECTURES)}."
        )
    return _MIXTRAL if found is _LLAMA and fields.get("expert_count") else found
