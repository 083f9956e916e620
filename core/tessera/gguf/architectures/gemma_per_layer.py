"""Gemma 3n and 4, which have an embedding of tokens for each layer and norms that multiply by their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import ENDS, HEAD_NORMS, GgufArchitecture, Names, Settings
from tessera.gguf.architectures.gemma import SANDWICH
from tessera.gguf.architectures.windows import sliding_layers
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.rope import proportional

_ENDS: Names = {
    **ENDS,
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_BLOCK: Names = {
    **SANDWICH,
    **HEAD_NORMS,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N: Names = {
    **_BLOCK,
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA4: Names = {
    **_BLOCK,
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps": "experts.{}.gate_up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}


def _inputs(fields: GgufFields, file: GgufFile) -> Settings:
    """Of the embedding for each layer, and of the last layers, which use keys and values of others."""
    table = file.tensors.get("per_layer_token_embd.weight")
    return {
        **({} if table is None else {"vocab_size_per_layer_input": table.shape[0]}),
        "hidden_size_per_layer_input": fields.count_if_any("embedding_length_per_layer_input"),
        "num_kv_shared_layers": fields.count_if_any("attention.shared_kv_layers"),
        "final_logit_softcapping": fields.get("final_logit_softcapping"),
    }


def _gemma3n(fields: GgufFields, file: GgufFile) -> Settings:
    laurel = file.tensors.get("blk.0.laurel_l.weight")
    return {
        **_inputs(fields, file),
        **sliding_layers(fields, every=5),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", 10000.0),
        "altup_num_inputs": fields.count("altup.num_inputs"),
        "altup_active_idx": fields.count_if_any("altup.active_idx"),
        "laurel_rank": None if laurel is None else laurel.shape[0],
        "activation_sparsity_pattern": [_share_below(scale) for scale in _sparsity(fields)],
    }


def _sparsity(fields: GgufFields) -> list[float]:
    scales = fields.per_layer("activation_sparsity_scale")
    if scales is None or not all(isinstance(scale, float) and not math.isnan(scale) for scale in scales):
        raise ModelError(f"{fields.key('activation_sparsity_scale')} of the GGUF file is not a number for each layer.")
    return list(scales)


def _share_below(deviations: float) -> float:
    """Of numbers with a normal distribution, those that are less than so many standard deviations above the mean."""
    return 0.5 * (1.0 + math.erf(deviations / math.sqrt(2.0)))


def _of_kind(numbers: Sequence[int], slides: Sequence[bool], kind: bool) -> int | None:
    """What the first layer of a kind has; None if there is none."""
    return next((number for number, own in zip(numbers, slides, strict=True) if own == kind), None)


def _gemma4(fields: GgufFields, file: GgufFile) -> Settings:
    """Layers with windows and those that see everything have heads of their own; only the latter may have keys for
    values."""
    windows = sliding_layers(fields, every=6)
    slides = [kind == "sliding_attention" for kind in windows["layer_types"]]
    shared = _inputs(fields, file)
    own = range(fields.num_layers - shared["num_kv_shared_layers"])
    keys_alone = any(not slides[layer] and f"blk.{layer}.attn_v.weight" not in file.tensors for layer in own)
    widths = fields.per_layer("feed_forward_length")
    heads = fields.per_layer("attention.head_count_kv")
    if heads is None:
        heads = [fields.count("attention.head_count_kv")] * fields.num_layers
    experts = fields.count_if_any("expert_count")
    return {
        **shared,
        **windows,
        "intermediate_size": fields.count("feed_forward_length") if widths is None else widths[0],
        "use_double_wide_mlp": widths is not None and widths[-1] == 2 * widths[0],
        "num_attention_heads": fields.count("attention.head_count"),
        "num_key_value_heads": _of_kind(heads, slides, True),
        "num_global_key_value_heads": _of_kind(heads, slides, False),
        "head_dim": fields.count("attention.key_length_swa"),
        "global_head_dim": fields.count("attention.key_length"),
        "attention_k_eq_v": keys_alone,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": fields.number("rope.freq_base_swa", 10000.0),
            },
            "full_attention": proportional(fields, file),
        },
        "enable_moe_block": bool(experts),
        "num_experts": experts or None,
        "top_k_experts": fields.count_if_any("expert_used_count") or None,
        "moe_intermediate_size": fields.count_if_any("expert_feed_forward_length") or None,
    }


GEMMA_PER_LAYER: Mapping[str, GgufArchitecture] = {
    "gemma3n": GgufArchitecture(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        _GEMMA3N,
        _gemma3n,
        ends={
            **_ENDS,
            "altup_proj.weight": "model.altup_projections.{}.weight",
            "altup_unembd_proj.weight": "model.altup_unembed_projections.{}.weight",
        },
    ),
    "gemma4": GgufArchitecture(
        "Gemma4ForCausalLM", "gemma4_text", _GEMMA4, _gemma4, sizes=lambda fields, file: {}, ends=_ENDS
    ),
}
"""By general.architecture."""
